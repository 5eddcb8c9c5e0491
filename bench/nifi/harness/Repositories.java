package harness;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.nifi.controller.FileSystemSwapManager;
import org.apache.nifi.controller.queue.FlowFileQueue;
import org.apache.nifi.controller.repository.FileSystemRepository;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.QueueProvider;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.StandardContentRepositoryContext;
import org.apache.nifi.controller.repository.StandardRepositoryRecord;
import org.apache.nifi.controller.repository.WriteAheadFlowFileRepository;
import org.apache.nifi.controller.repository.claim.ContentClaim;
import org.apache.nifi.controller.repository.claim.ResourceClaimManager;
import org.apache.nifi.controller.repository.claim.StandardResourceClaimManager;
import org.apache.nifi.events.EventReporter;
import org.apache.nifi.processor.DataUnit;
import org.apache.nifi.util.NiFiProperties;

/** NiFi's three repositories in one directory, as its FlowController opens them, with one queue. */
final class Repositories {
    /** As shipped. */
    private static final String MAX_APPENDABLE_SIZE = "50 KB";
    private static final String CLEANUP_FREQUENCY = "1 min";

    final ResourceClaimManager claims = new StandardResourceClaimManager();
    final FileSystemRepository content;
    final WriteAheadFlowFileRepository flowFiles;
    final FileSystemSwapManager swap;
    final FlowFileQueue queue;
    final Path contentPath;
    final long maxAppendableBytes;

    /** What recovery, `fill` and swapping in put into the queue. */
    final List<FlowFileRecord> queued = new ArrayList<>();
    final List<FlowFileRecord> dropped = new ArrayList<>();
    final Map<Integer, List<ContentClaim>> written = new HashMap<>();
    final List<String> swapLocations = new ArrayList<>();
    final long openNanos;

    Repositories(final Path directory, final Harness.Job job) throws Exception {
        final String sync = String.valueOf(job.flag("sync"));
        final String appendable = job.text("appendable", MAX_APPENDABLE_SIZE);
        maxAppendableBytes = DataUnit.parseDataSize(appendable, DataUnit.B).longValue();
        contentPath = directory.resolve("content");
        final NiFiProperties properties = NiFiProperties.createBasicNiFiProperties("", Map.ofEntries(
            Map.entry("nifi.content.repository.directory.default", contentPath.toString()),
            Map.entry("nifi.content.repository.always.sync", sync),
            Map.entry("nifi.content.repository.archive.enabled", String.valueOf(job.flag("archive"))),
            Map.entry("nifi.content.repository.archive.max.retention.period", "1 sec"), // it is over when it matters
            Map.entry("nifi.content.repository.archive.max.usage.percentage", "90%"),
            Map.entry("nifi.content.repository.archive.cleanup.frequency", job.text("cleanup", CLEANUP_FREQUENCY)),
            Map.entry("nifi.content.claim.max.appendable.size", appendable),
            Map.entry("nifi.flowfile.repository.directory", directory.resolve("flowfile").toString()),
            Map.entry("nifi.flowfile.repository.always.sync", sync),
            Map.entry("nifi.flowfile.repository.checkpoint.interval", "10 hours"))); // the bench says when
        queue = queueOf(queued);
        content = new FileSystemRepository(properties);
        content.initialize(new StandardContentRepositoryContext(claims, EventReporter.NO_OP));
        final long begin = System.nanoTime();
        flowFiles = new WriteAheadFlowFileRepository(properties);
        flowFiles.initialize(claims);
        swap = new FileSystemSwapManager(properties);
        swap.initialize(new SwapContext(flowFiles, claims));
        final QueueProvider queues = () -> Collections.singletonList(queue);
        flowFiles.loadFlowFiles(queues);
        openNanos = System.nanoTime() - begin;
        for (final String location : swap.recoverSwapLocations(queue, null)) {
            swapLocations.add(location);
            swap.getSwapSummary(location).getResourceClaims().forEach(claims::incrementClaimantCount);
        }
        content.cleanup();
    }

    void update(final Collection<RepositoryRecord> records) throws IOException {
        flowFiles.updateRepository(records);
    }

    /** A record that creates a FlowFile, as a session hands it to the FlowFile repository. */
    RepositoryRecord creation(final FlowFileRecord flowFile) {
        final StandardRepositoryRecord record = new StandardRepositoryRecord((FlowFileQueue) null);
        record.setWorking(flowFile, flowFile.getAttributes(), flowFile.getContentClaim() != null);
        record.setDestination(queue);
        return record;
    }

    void close() throws IOException {
        flowFiles.close();
        content.shutdown();
    }

    /** A queue that is a list: the repositories ask a queue for its identifier, and recovery puts FlowFiles into it. */
    private static FlowFileQueue queueOf(final List<FlowFileRecord> queued) {
        final String identifier = new UUID(0, 1).toString();
        return (FlowFileQueue) Proxy.newProxyInstance(
            Repositories.class.getClassLoader(),
            new Class<?>[] {FlowFileQueue.class},
            (proxy, method, arguments) -> switch (method.getName()) {
                case "getIdentifier" -> identifier;
                case "put" -> {
                    queued.add((FlowFileRecord) arguments[0]);
                    yield null;
                }
                case "hashCode" -> 1;
                case "equals" -> proxy == arguments[0];
                case "toString" -> "the queue";
                default -> throw new UnsupportedOperationException(method.toString());
            });
    }
}
