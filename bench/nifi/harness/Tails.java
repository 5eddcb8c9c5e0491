package harness;

import java.io.InputStream;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.claim.ContentClaim;
import org.apache.nifi.controller.repository.claim.ResourceClaim;
import org.apache.nifi.controller.repository.claim.StandardContentClaimWriteCache;
import org.apache.nifi.controller.repository.metrics.NopPerformanceTracker;

/** Contents that share resource claims, most of which then die: what NiFi gives back, and what a replay finds. */
final class Tails {
    private static final int BUFFER_BYTES = 8_192;

    private Tails() {
    }

    /** `count` sessions of `smalls` FlowFiles of `small` bytes and then one of `size` bytes, all into the queue. */
    static Map<String, Object> write(final Repositories repositories, final Harness.Job job) throws Exception {
        final List<Integer> sizes = new ArrayList<>();
        for (int i = 0; i < job.number("smalls"); i++) {
            sizes.add(job.number("small"));
        }
        sizes.add(job.number("size"));
        for (int session = 0; session < job.number("count"); session++) {
            writeSession(repositories, sizes);
        }
        return Map.of("count", repositories.queued.size());
    }

    /** Sessions of a hundred FlowFiles of `least` to `most` bytes, until there are `size` bytes in the queue. */
    static Map<String, Object> writeMixed(final Repositories repositories, final Harness.Job job) throws Exception {
        final Random chance = new Random(job.number("seed"));
        final int least = job.number("least");
        final int most = job.number("most");
        for (long written = 0; written < job.number("size");) {
            final List<Integer> sizes = new ArrayList<>();
            for (int i = 0; i < 100; i++) {
                sizes.add(chance.nextInt(least, most + 1));
                written += sizes.getLast();
            }
            writeSession(repositories, sizes);
        }
        return Map.of("count", repositories.queued.size());
    }

    private static void writeSession(final Repositories repositories, final List<Integer> sizes) throws Exception {
        final StandardContentClaimWriteCache cache = new StandardContentClaimWriteCache(
            repositories.content, new NopPerformanceTracker(), repositories.maxAppendableBytes, BUFFER_BYTES);
        final List<RepositoryRecord> records = new ArrayList<>(sizes.size());
        for (final int size : sizes) {
            final byte[] content = new byte[size];
            new Random(size).nextBytes(content);
            final ContentClaim claim = cache.getContentClaim();
            try (OutputStream out = cache.write(claim)) {
                out.write(content);
            }
            final FlowFileRecord flowFile = Contents.created(repositories, claim, size);
            repositories.queued.add(flowFile);
            records.add(repositories.creation(flowFile));
        }
        try {
            cache.flush();
        } finally {
            cache.reset();
        }
        repositories.update(records);
    }

    /** Drops the FlowFiles in the queue that have more than `size` bytes, and lets their claims go. */
    static Map<String, Object> dropLarger(final Repositories repositories, final Harness.Job job) throws Exception {
        final List<FlowFileRecord> doomed = new ArrayList<>();
        for (final FlowFileRecord flowFile : repositories.queued) {
            if (flowFile.getSize() > job.number("size")) {
                doomed.add(flowFile);
            }
        }
        return drop(repositories, doomed);
    }

    /** Drops all FlowFiles in the queue but one of each resource claim, chosen by chance. */
    static Map<String, Object> dropAllButOne(final Repositories repositories, final Harness.Job job) throws Exception {
        final Map<ResourceClaim, List<FlowFileRecord>> sharing = new LinkedHashMap<>();
        for (final FlowFileRecord flowFile : repositories.queued) {
            sharing.computeIfAbsent(flowFile.getContentClaim().getResourceClaim(), key -> new ArrayList<>()).add(flowFile);
        }
        final Random chance = new Random(job.number("seed"));
        final List<FlowFileRecord> doomed = new ArrayList<>();
        for (final List<FlowFileRecord> together : sharing.values()) {
            together.remove(chance.nextInt(together.size()));
            doomed.addAll(together);
        }
        return drop(repositories, doomed);
    }

    private static Map<String, Object> drop(final Repositories repositories, final List<FlowFileRecord> doomed)
            throws Exception {
        repositories.queued.removeAll(new HashSet<>(doomed));
        repositories.dropped.addAll(doomed);
        repositories.update(Drops.deletions(repositories, doomed));
        repositories.flowFiles.checkpoint();
        final long live = repositories.queued.stream().mapToLong(FlowFileRecord::getSize).sum();
        return Map.of("count", doomed.size(), "live", live);
    }

    /** What a replay of the FlowFiles that were dropped has to go by, and the bytes that it would find. */
    static Map<String, Object> replay(final Repositories repositories) throws Exception {
        long accessible = 0;
        long promised = 0;
        long found = 0;
        for (final FlowFileRecord flowFile : repositories.dropped) {
            if (repositories.content.isAccessible(flowFile.getContentClaim())) {
                accessible++;
                promised += flowFile.getSize();
                try (InputStream in = repositories.content.read(flowFile.getContentClaim())) {
                    found += in.transferTo(OutputStream.nullOutputStream());
                }
            }
        }
        return Map.of("count", repositories.dropped.size(), "accessible", accessible, "promised", promised, "found", found);
    }
}
