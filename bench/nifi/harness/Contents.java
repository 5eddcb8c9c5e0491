package harness;

import java.io.InputStream;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.StandardFlowFileRecord;
import org.apache.nifi.controller.repository.claim.ContentClaim;
import org.apache.nifi.controller.repository.claim.StandardContentClaimWriteCache;
import org.apache.nifi.controller.repository.metrics.NopPerformanceTracker;

/** Writing content in sessions, and reading it back. */
final class Contents {
    private static final int PIECE_BYTES = 1 << 20;
    private static final int BUFFER_BYTES = 8_192; // as NiFi's StandardRepositoryContext sets it
    private static final int REMEMBERED_BYTES = 200_000;

    private Contents() {
    }

    /**
     * `sessions` sessions that create `claims` FlowFiles of `size` bytes each. A commit does what StandardProcessSession
     * does: flush and close the content (which syncs it, if that is on), then update the FlowFile repository.
     */
    static Map<String, Object> write(final Repositories repositories, final Harness.Job job) throws Exception {
        final int size = job.number("size");
        final int count = job.number("claims");
        final byte[] piece = new byte[Math.min(size, PIECE_BYTES)];
        new Random(size).nextBytes(piece);
        final List<ContentClaim> written = new ArrayList<>();
        final StandardContentClaimWriteCache cache = new StandardContentClaimWriteCache(
            repositories.content, new NopPerformanceTracker(), repositories.maxAppendableBytes, BUFFER_BYTES);
        final long nanos = Harness.timed(() -> {
            for (int session = 0; session < job.number("sessions"); session++) {
                final List<RepositoryRecord> records = new ArrayList<>(count);
                for (int i = 0; i < count; i++) {
                    final ContentClaim claim = cache.getContentClaim();
                    try (OutputStream out = cache.write(claim)) {
                        for (int rest = size; rest > 0; rest -= piece.length) {
                            out.write(piece, 0, Math.min(rest, piece.length));
                        }
                    }
                    records.add(repositories.creation(created(repositories, claim, size)));
                    written.add(claim);
                }
                try {
                    cache.flush();
                } finally {
                    cache.reset();
                }
                repositories.update(records);
            }
        });
        if (size <= REMEMBERED_BYTES) {
            repositories.written.computeIfAbsent(size, key -> new ArrayList<>()).addAll(written);
        }
        return Map.of("nanos", nanos, "count", written.size());
    }

    /** Random reads of whole claims that `write` made. */
    static Map<String, Object> read(final Repositories repositories, final Harness.Job job) throws Exception {
        final List<ContentClaim> written = repositories.written.get(job.number("size"));
        final Random chance = new Random(job.number("seed"));
        final List<ContentClaim> chosen = new ArrayList<>();
        for (int i = 0; i < job.number("count"); i++) {
            chosen.add(written.get(chance.nextInt(written.size())));
        }
        final byte[] buffer = new byte[job.number("size")];
        final long nanos = Harness.timed(() -> {
            for (final ContentClaim claim : chosen) {
                try (InputStream in = repositories.content.read(claim)) {
                    if (in.readNBytes(buffer, 0, buffer.length) != buffer.length) {
                        throw new AssertionError("short read of " + claim);
                    }
                }
            }
        });
        return Map.of("nanos", nanos, "count", chosen.size());
    }

    /** A FlowFile with the three attributes that ProcessSession.create gives it. */
    static FlowFileRecord created(final Repositories repositories, final ContentClaim claim, final long size) {
        final Map<String, String> attributes = new HashMap<>();
        final String uuid = UUID.randomUUID().toString();
        attributes.put("filename", uuid);
        attributes.put("path", "./");
        attributes.put("uuid", uuid);
        final long now = System.currentTimeMillis();
        final long id = repositories.flowFiles.getNextFlowFileSequence();
        return new StandardFlowFileRecord.Builder()
            .id(id)
            .addAttributes(attributes)
            .entryDate(now)
            .lineageStart(now, id)
            .contentClaim(claim)
            .size(size)
            .build();
    }
}
