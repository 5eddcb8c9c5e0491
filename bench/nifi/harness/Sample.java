package harness;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Stream;
import org.apache.nifi.controller.FileSystemSwapManager;
import org.apache.nifi.controller.queue.FlowFileQueue;
import org.apache.nifi.controller.repository.FileSystemRepository;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.StandardContentRepositoryContext;
import org.apache.nifi.controller.repository.StandardFlowFileRecord;
import org.apache.nifi.controller.repository.StandardRepositoryRecord;
import org.apache.nifi.controller.repository.WriteAheadFlowFileRepository;
import org.apache.nifi.controller.repository.claim.ContentClaim;
import org.apache.nifi.controller.repository.claim.ContentClaimWriteCache;
import org.apache.nifi.controller.repository.claim.ResourceClaim;
import org.apache.nifi.controller.repository.claim.ResourceClaimManager;
import org.apache.nifi.controller.repository.claim.StandardResourceClaimManager;
import org.apache.nifi.events.EventReporter;
import org.apache.nifi.util.NiFiProperties;

/**
 * Writes the repositories of a NiFi of two containers and four queues, by chance of a seed, as sessions and queues do:
 * shared files, clones, parts of contents, empty contents, long and strange attributes, swap files, a transaction that
 * overflows, an archive. truth.tsv beside them has each FlowFile that the queues hold, and where its content lies.
 *
 * Arguments: the directory, the seed, and how it ends: `stopped` as NiFi is stopped, or `killed` amid its work. Or
 * `busy`: it goes on until it is killed, with checkpoints often, and log.tsv has after each transaction its number, how
 * many FlowFiles there are, and their bytes; the number that follows is about how many it holds. A line on stdin makes
 * it stand still between two transactions and say what NiFi's diagnostics tell, up to `#end`, and so does each further
 * line; an empty one lets it go on.
 */
final class Sample {
    private static final long APPENDABLE_BYTES = 50_000;
    private static final int ATTRIBUTE_BYTES = 70_000;
    private static final int OVERFLOW_FLOWFILES = 80; // of 70 KB: more than the 5 MB that a journal takes of one update

    private final Random chance;
    private final Path directory;
    private final ResourceClaimManager claims = new StandardResourceClaimManager();
    private final FileSystemRepository content;
    private final WriteAheadFlowFileRepository flowFiles;
    private final FileSystemSwapManager swap;
    private final List<FlowFileQueue> queues = new ArrayList<>();
    private final Map<FlowFileQueue, List<FlowFileRecord>> held = new LinkedHashMap<>();
    private final Map<FlowFileQueue, List<FlowFileRecord>> swapped = new LinkedHashMap<>();
    private long queuedIndex;
    private long transaction = -1;
    private BufferedWriter log;
    private final List<String> locations = new ArrayList<>();

    public static void main(final String[] arguments) throws Exception {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // the repositories' own threads would go on
        });
        final Sample sample = new Sample(Path.of(arguments[0]), Long.parseLong(arguments[1]));
        if (arguments[2].equals("busy")) {
            sample.beBusy(Integer.parseInt(arguments[3]));
        }
        sample.work();
        sample.tell();
        if (arguments[2].equals("stopped")) {
            sample.flowFiles.close();
            sample.content.shutdown();
        }
        Runtime.getRuntime().halt(0);
    }

    private Sample(final Path directory, final long seed) throws Exception {
        this.directory = directory.toAbsolutePath();
        chance = new Random(seed);
        final NiFiProperties properties = NiFiProperties.createBasicNiFiProperties("", Map.ofEntries(
            Map.entry("nifi.content.repository.directory.default", path("content_repository")),
            Map.entry("nifi.content.repository.directory.second", path("content_second")),
            Map.entry("nifi.content.repository.archive.enabled", "true"),
            Map.entry("nifi.content.repository.archive.max.retention.period", "12 hours"),
            Map.entry("nifi.content.repository.archive.max.usage.percentage", "99%"),
            Map.entry("nifi.content.claim.max.appendable.size", APPENDABLE_BYTES + " B"),
            Map.entry("nifi.flowfile.repository.directory", path("flowfile_repository")),
            Map.entry("nifi.flowfile.repository.checkpoint.interval", "10 hours"))); // this program says when
        for (int i = 1; i <= 4; i++) {
            final FlowFileQueue queue = queueOf(new UUID(0, i).toString());
            queues.add(queue);
            held.put(queue, new ArrayList<>());
            swapped.put(queue, new ArrayList<>());
        }
        content = new FileSystemRepository(properties);
        content.initialize(new StandardContentRepositoryContext(claims, EventReporter.NO_OP));
        flowFiles = new WriteAheadFlowFileRepository(properties);
        flowFiles.initialize(claims);
        swap = new FileSystemSwapManager(properties);
        swap.initialize(new SwapContext(flowFiles, claims));
        flowFiles.loadFlowFiles(() -> queues);
    }

    private String path(final String name) {
        return directory.resolve(name).toString();
    }

    private void beBusy(final int about) throws Exception {
        log = Files.newBufferedWriter(directory.resolve("log.tsv"));
        final BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (true) {
            if (asked.ready()) {
                while (!asked.readLine().isEmpty()) {
                    System.out.print(Diagnostics.of(content, flowFiles, swap, claims, List.of()) + "#end\n");
                    System.out.flush();
                }
            }
            final FlowFileQueue queue = queues.get(chance.nextInt(queues.size()));
            final int count = held.get(queue).size();
            switch (chance.nextInt(8)) {
                case 0 -> swapOut(queue, Math.min(count, 200));
                case 1 -> {
                    if (!locations.isEmpty()) {
                        final String location = locations.remove(chance.nextInt(locations.size()));
                        swapIn(queues.stream().filter(each -> location.contains(each.getIdentifier())).findFirst()
                            .orElseThrow(), location);
                    }
                }
                case 2 -> move(queue, queues.get(chance.nextInt(queues.size())), Math.min(count, 20));
                case 3 -> drop(queue, count > about ? 0.9 : 400.0 / about); // what comes meanwhile, of four queues
                case 4 -> create(queue, 3, 200_000, Map.of());
                case 5 -> {
                    if (chance.nextInt(20) == 0) {
                        flowFiles.checkpoint();
                    }
                }
                default -> create(queue, 50, 4_000, Map.of());
            }
        }
    }

    /** A transaction is done. */
    private void note() throws Exception {
        transaction++;
        if (log != null) {
            final long bytes = Stream.concat(held.values().stream(), swapped.values().stream())
                .flatMap(List::stream).mapToLong(FlowFileRecord::getSize).sum();
            final int count = Stream.concat(held.values().stream(), swapped.values().stream()).mapToInt(List::size).sum();
            log.write(transaction + "\t" + count + "\t" + bytes + "\n");
            log.flush();
        }
    }

    private void noteUnless(final boolean wasNothing) throws Exception {
        if (!wasNothing) {
            note();
        }
    }

    private void update(final List<RepositoryRecord> records) throws Exception {
        if (!records.isEmpty()) {
            flowFiles.updateRepository(records);
        }
    }

    private void work() throws Exception {
        for (int session = 0; session < 6; session++) {
            create(queues.get(session % 3), 40, 4_000, Map.of());
        }
        create(queues.get(0), 4, 300_000, Map.of());
        create(queues.get(1), 3, 0, Map.of());
        create(queues.get(2), 2, 900, Map.of("größe \uD83D\uDE00", "N\u0000L", "long", "y".repeat(ATTRIBUTE_BYTES)));
        without(queues.get(2));
        copies(queues.get(0), queues.get(2));
        drop(queues.get(0), 0.7);
        swapOut(queues.get(1), 50);
        flowFiles.checkpoint();
        create(queues.get(1), 30, 2_000, Map.of());
        drop(queues.get(1), 0.5);
        move(queues.get(2), queues.get(0), 10);
        swapOut(queues.get(2), 20);
        swapIn(queues.get(1), swapOut(queues.get(1), 10));
        drop(queues.get(0), 0.3);
        create(queues.get(3), 12, 300_000, Map.of());
        create(queues.get(3), 2, 300_000, Map.of()); // in NiFi 1 the first of that session's may have been appended
        drop(queues.get(3), 1);
        awaitArchive();
    }

    /** One session that creates FlowFiles of up to `most` bytes in files that they share. */
    private void create(final FlowFileQueue queue, final int count, final int most, final Map<String, String> more)
            throws Exception {
        final ContentClaimWriteCache cache = WriteCaches.of(content, APPENDABLE_BYTES, 8_192);
        final List<FlowFileRecord> made = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            final byte[] bytes = new byte[most == 0 ? 0 : 1 + chance.nextInt(most)];
            java.util.Arrays.fill(bytes, (byte) ('a' + chance.nextInt(26))); // a fixture is small when it is packed
            final ContentClaim claim = cache.getContentClaim();
            final long offset = Math.max(0, claim.getLength()); // in NiFi 1 a session's contents are parts of one claim
            try (OutputStream out = cache.write(claim)) {
                out.write(bytes);
            }
            made.add(flowFile(claim, offset, bytes.length, more));
        }
        try {
            cache.flush();
        } finally {
            cache.reset();
        }
        commit(queue, made);
    }

    private void without(final FlowFileQueue queue) throws Exception {
        commit(queue, List.of(flowFile(null, 0, 0, Map.of("empty", ""))));
    }

    /** A clone of one content, and a part of the largest one, as a split makes it. */
    private void copies(final FlowFileQueue from, final FlowFileQueue to) throws Exception {
        final FlowFileRecord first = held.get(from).get(0);
        final FlowFileRecord largest = held.get(from).stream()
            .max((one, other) -> Long.compare(one.getSize(), other.getSize())).orElseThrow();
        content.incrementClaimaintCount(first.getContentClaim());
        content.incrementClaimaintCount(largest.getContentClaim());
        commit(to, List.of(
            flowFile(first.getContentClaim(), 0, first.getSize(), Map.of()),
            flowFile(largest.getContentClaim(), 100, largest.getSize() / 3, Map.of())));
    }

    private FlowFileRecord flowFile(
            final ContentClaim claim, final long offset, final long size, final Map<String, String> more) {
        final long id = flowFiles.getNextFlowFileSequence();
        final String uuid = new UUID(chance.nextLong(), chance.nextLong()).toString();
        final Map<String, String> attributes = new HashMap<>(more);
        attributes.put("uuid", uuid);
        attributes.put("filename", "file-" + id);
        attributes.put("path", "./");
        final long now = System.currentTimeMillis();
        return new StandardFlowFileRecord.Builder().id(id).addAttributes(attributes).entryDate(now).lineageStart(now, id)
            .lastQueued(now, queuedIndex++).contentClaim(claim).contentClaimOffset(offset).size(size).build();
    }

    private void commit(final FlowFileQueue queue, final List<FlowFileRecord> made) throws Exception {
        final List<RepositoryRecord> records = new ArrayList<>();
        for (final FlowFileRecord flowFile : made) {
            final StandardRepositoryRecord record = new StandardRepositoryRecord((FlowFileQueue) null);
            record.setWorking(flowFile, flowFile.getAttributes(), flowFile.getContentClaim() != null);
            record.setDestination(queue);
            records.add(record);
        }
        update(records);
        held.get(queue).addAll(made);
        note();
    }

    private void move(final FlowFileQueue from, final FlowFileQueue to, final int count) throws Exception {
        final List<RepositoryRecord> records = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            final FlowFileRecord old = held.get(from).remove(chance.nextInt(held.get(from).size()));
            final FlowFileRecord moved = new StandardFlowFileRecord.Builder().fromFlowFile(old)
                .addAttribute("moved", "yes").lastQueued(System.currentTimeMillis(), queuedIndex++).build();
            final StandardRepositoryRecord record = new StandardRepositoryRecord(from, old);
            record.setWorking(moved, "moved", "yes", false);
            record.setDestination(to);
            records.add(record);
            held.get(to).add(moved);
        }
        update(records);
        noteUnless(records.isEmpty());
    }

    private void drop(final FlowFileQueue queue, final double share) throws Exception {
        final List<RepositoryRecord> records = new ArrayList<>();
        final Set<FlowFileRecord> doomed = new HashSet<>();
        for (final FlowFileRecord flowFile : held.get(queue)) {
            if (chance.nextDouble() < share) {
                final StandardRepositoryRecord record = new StandardRepositoryRecord(queue, flowFile);
                record.setDestination(queue);
                record.markForDelete();
                records.add(record);
                doomed.add(flowFile);
            }
        }
        held.get(queue).removeAll(doomed);
        update(records);
        noteUnless(records.isEmpty());
    }

    private String swapOut(final FlowFileQueue queue, final int count) throws Exception {
        final List<FlowFileRecord> batch = new ArrayList<>(held.get(queue).subList(0, count));
        held.get(queue).subList(0, count).clear();
        swapped.get(queue).addAll(batch);
        final String location = swap.swapOut(batch, queue, null);
        noteUnless(batch.isEmpty());
        if (location != null) {
            locations.add(location);
        }
        return location;
    }

    private void swapIn(final FlowFileQueue queue, final String location) throws Exception {
        final List<FlowFileRecord> back = swap.swapIn(location, queue).getFlowFiles();
        swapped.get(queue).removeAll(new HashSet<>(back));
        held.get(queue).addAll(back);
        locations.remove(location);
        note();
    }

    /** NiFi moves what nobody uses to the archive once a checkpoint has made sure of it, a second or two later. */
    private void awaitArchive() throws Exception {
        flowFiles.checkpoint();
        while (true) {
            try (Stream<Path> files = Files.walk(directory)) {
                if (files.anyMatch(file -> file.getParent().endsWith("archive"))) {
                    break;
                }
            }
            Thread.sleep(100);
        }
        create(queues.get(1), 5, 700, Map.of());
        create(queues.get(0), OVERFLOW_FLOWFILES, 10, Map.of("long", "z".repeat(ATTRIBUTE_BYTES)));
        drop(queues.get(1), 0.3);
        swapOut(queues.get(0), 5);
    }

    private void tell() throws Exception {
        final StringBuilder text = new StringBuilder();
        held.forEach((queue, all) -> all.forEach(flowFile -> text.append(line(queue, "queued", flowFile))));
        swapped.forEach((queue, all) -> all.forEach(flowFile -> text.append(line(queue, "swapped", flowFile))));
        Files.write(directory.resolve("truth.tsv"), text.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String line(final FlowFileQueue queue, final String where, final FlowFileRecord flowFile) {
        final ContentClaim claim = flowFile.getContentClaim();
        String file = "-";
        long start = 0;
        if (claim != null) {
            final ResourceClaim resource = claim.getResourceClaim();
            file = resource.getContainer() + "/" + resource.getSection() + "/" + resource.getId();
            start = claim.getOffset() + flowFile.getContentClaimOffset();
        }
        return Stream.of(queue.getIdentifier(), where, flowFile.getId(), flowFile.getAttribute("uuid"), file, start,
                flowFile.getSize(), flowFile.getAttributes().size(), flowFile.getLastQueueDate())
            .map(String::valueOf).collect(java.util.stream.Collectors.joining("\t", "", "\n"));
    }

    /** The repositories ask a queue for its identifier only, but those that recover put FlowFiles into it. */
    private static FlowFileQueue queueOf(final String identifier) {
        return (FlowFileQueue) Proxy.newProxyInstance(
            Sample.class.getClassLoader(),
            new Class<?>[] {FlowFileQueue.class},
            (proxy, method, arguments) -> switch (method.getName()) {
                case "getIdentifier" -> identifier;
                case "hashCode" -> identifier.hashCode();
                case "equals" -> proxy == arguments[0];
                case "toString" -> identifier;
                default -> throw new UnsupportedOperationException(method.toString());
            });
    }
}
