package harness;

import java.io.InputStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.nifi.controller.FileSystemSwapManager;
import org.apache.nifi.controller.queue.FlowFileQueue;
import org.apache.nifi.controller.queue.QueuePrioritizer;
import org.apache.nifi.controller.repository.FileSystemRepository;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.StandardContentRepositoryContext;
import org.apache.nifi.controller.repository.WriteAheadFlowFileRepository;
import org.apache.nifi.controller.repository.claim.ContentClaim;
import org.apache.nifi.controller.repository.claim.ResourceClaimManager;
import org.apache.nifi.controller.repository.claim.StandardResourceClaimManager;
import org.apache.nifi.events.EventReporter;
import org.apache.nifi.util.NiFiProperties;

/**
 * Opens the repositories of a Sample as NiFi's FlowController does when it starts, its clean-up included, and prints each
 * FlowFile in the order in which NiFi has it: queue, numbers and dates, digests of its attributes and of its content.
 * Before that, and before the clean-up, what its diagnostics tell.
 *
 * Arguments: directories, one after the other. What NiFi changes as it starts is changed. After `--ordered` each queue's
 * FlowFiles, and then those of each swap file, are in the order of NiFi's QueuePrioritizer, and their uuids come last.
 */
final class Judge {
    private final ResourceClaimManager claims = new StandardResourceClaimManager();
    private final FileSystemRepository content;
    private final WriteAheadFlowFileRepository flowFiles;
    private final FileSystemSwapManager swap;
    private final Map<FlowFileQueue, List<FlowFileRecord>> held = new LinkedHashMap<>();

    private static boolean isOrdered;

    public static void main(final String[] arguments) throws Exception {
        for (final String argument : arguments) {
            if (argument.equals("--ordered")) {
                isOrdered = true;
                continue;
            }
            System.out.println("= " + argument);
            new Judge(Path.of(argument)).tell();
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private Judge(final Path directory) throws Exception {
        final NiFiProperties properties = NiFiProperties.createBasicNiFiProperties("", Map.ofEntries(
            Map.entry("nifi.content.repository.directory.default", directory.resolve("content_repository").toString()),
            Map.entry("nifi.content.repository.directory.second", directory.resolve("content_second").toString()),
            Map.entry("nifi.content.repository.archive.enabled", "false"),
            Map.entry("nifi.content.claim.max.appendable.size", "50000 B"),
            Map.entry("nifi.flowfile.repository.directory", directory.resolve("flowfile_repository").toString()),
            Map.entry("nifi.flowfile.repository.checkpoint.interval", "10 hours")));
        for (int i = 1; i <= 4; i++) {
            final List<FlowFileRecord> queued = new ArrayList<>();
            held.put(queueOf(new UUID(0, i).toString(), queued), queued);
        }
        content = new FileSystemRepository(properties);
        content.initialize(new StandardContentRepositoryContext(claims, EventReporter.NO_OP));
        flowFiles = new WriteAheadFlowFileRepository(properties);
        flowFiles.initialize(claims);
        swap = new FileSystemSwapManager(properties);
        swap.initialize(new SwapContext(flowFiles, claims));
        flowFiles.loadFlowFiles(held::keySet);
    }

    private void tell() throws Exception {
        final Map<FlowFileQueue, List<String>> locations = new LinkedHashMap<>();
        for (final FlowFileQueue queue : held.keySet()) {
            locations.put(queue, swap.recoverSwapLocations(queue, null));
            for (final String location : locations.get(queue)) {
                swap.getSwapSummary(location).getResourceClaims().forEach(claims::incrementClaimantCount);
            }
        }
        System.out.print(Diagnostics.of(content, flowFiles, swap, claims, locations.values().stream().flatMap(List::stream).toList()));
        content.cleanup();
        for (final FlowFileQueue queue : held.keySet()) {
            for (final FlowFileRecord flowFile : ordered(held.get(queue))) {
                System.out.println(line(queue, "queued", flowFile));
            }
            for (final String location : locations.get(queue)) {
                for (final FlowFileRecord flowFile : ordered(swap.peek(location, queue).getFlowFiles())) {
                    System.out.println(line(queue, "swapped", flowFile));
                }
            }
        }
        flowFiles.close();
        content.shutdown();
    }

    private static List<FlowFileRecord> ordered(final List<FlowFileRecord> flowFiles) {
        final List<FlowFileRecord> sorted = new ArrayList<>(flowFiles);
        if (isOrdered) {
            sorted.sort(new QueuePrioritizer(List.of()));
        }
        return sorted;
    }

    private String line(final FlowFileQueue queue, final String where, final FlowFileRecord flowFile) throws Exception {
        final MessageDigest attributes = MessageDigest.getInstance("SHA-256");
        new TreeMap<>(flowFile.getAttributes()).forEach((name, value) -> {
            attributes.update((name.length() + ":" + name + "=" + value.length() + ":" + value).getBytes(StandardCharsets.UTF_16BE));
        });
        return Stream.of(queue.getIdentifier(), where, flowFile.getId(), flowFile.getEntryDate(), flowFile.getLineageStartDate(),
                flowFile.getLineageStartIndex(), flowFile.getLastQueueDate(), flowFile.getQueueDateIndex(), flowFile.getSize(),
                HexFormat.of().formatHex(attributes.digest()), contentOf(flowFile),
                isOrdered ? flowFile.getAttribute("uuid") : "")
            .map(String::valueOf).collect(Collectors.joining("\t"));
    }

    /** The digest of its content, read as a session reads it; or what went wrong. */
    private String contentOf(final FlowFileRecord flowFile) throws Exception {
        final ContentClaim claim = flowFile.getContentClaim();
        final MessageDigest digest = MessageDigest.getInstance("SHA-256");
        long rest = flowFile.getSize();
        try (InputStream in = content.read(claim)) {
            in.skipNBytes(flowFile.getContentClaimOffset());
            final byte[] buffer = new byte[65_536];
            while (rest > 0) {
                final int count = in.read(buffer, 0, (int) Math.min(buffer.length, rest));
                if (count < 0) {
                    return "short by " + rest;
                }
                digest.update(buffer, 0, count);
                rest -= count;
            }
        } catch (final Exception error) {
            return "unreadable: " + error.getClass().getSimpleName();
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    private static FlowFileQueue queueOf(final String identifier, final List<FlowFileRecord> queued) {
        return (FlowFileQueue) Proxy.newProxyInstance(
            Judge.class.getClassLoader(),
            new Class<?>[] {FlowFileQueue.class},
            (proxy, method, arguments) -> switch (method.getName()) {
                case "getIdentifier" -> identifier;
                case "put" -> {
                    queued.add((FlowFileRecord) arguments[0]);
                    yield null;
                }
                case "hashCode" -> identifier.hashCode();
                case "equals" -> proxy == arguments[0];
                case "toString" -> identifier;
                default -> throw new UnsupportedOperationException(method.toString());
            });
    }
}
