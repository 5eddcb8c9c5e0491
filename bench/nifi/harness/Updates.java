package harness;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.StandardFlowFileRecord;
import org.apache.nifi.controller.repository.StandardRepositoryRecord;
import org.apache.nifi.controller.repository.claim.ResourceClaim;
import org.apache.nifi.controller.repository.claim.StandardContentClaim;

/** FlowFiles with five attributes: creating them, and changing one attribute of many. */
final class Updates {
    private static final int BATCH = 10_000;
    private static final int CLAIMS_PER_RESOURCE = 100;
    private static final AtomicLong NUMBER = new AtomicLong();

    private Updates() {
    }

    /** Creates `count` FlowFiles. Their claims of one byte exist on paper only: nothing here reads content. */
    static Map<String, Object> fill(final Repositories repositories, final Harness.Job job) throws Exception {
        final int count = job.number("count");
        ResourceClaim resource = null;
        for (int first = 0; first < count; first += BATCH) {
            final List<RepositoryRecord> records = new ArrayList<>();
            for (int number = first; number < Math.min(first + BATCH, count); number++) {
                if (number % CLAIMS_PER_RESOURCE == 0) {
                    resource = resource(repositories, number / CLAIMS_PER_RESOURCE);
                }
                repositories.claims.incrementClaimantCount(resource);
                final FlowFileRecord flowFile = flowFile(repositories, number, resource, number % CLAIMS_PER_RESOURCE);
                records.add(repositories.creation(flowFile));
                repositories.queued.add(flowFile);
            }
            repositories.update(records);
        }
        return Map.of("count", repositories.queued.size());
    }

    static ResourceClaim resource(final Repositories repositories, final int number) {
        final String section = String.valueOf(number % 1024);
        return repositories.claims.newResourceClaim("default", section, "1700000000000-" + number, false, false);
    }

    /** Five attributes: with the uuid, which is an attribute here. */
    static FlowFileRecord flowFile(
            final Repositories repositories, final int number, final ResourceClaim resource, final long offset) {
        final StandardContentClaim claim = new StandardContentClaim(resource, offset);
        claim.setLength(1);
        final long id = repositories.flowFiles.getNextFlowFileSequence();
        return new StandardFlowFileRecord.Builder()
            .id(id)
            .addAttributes(Map.of(
                "uuid", UUID.randomUUID().toString(),
                "filename", "reading-%09d.json".formatted(number),
                "path", "/sensors/%03d/".formatted(number % 1_000),
                "mime.type", "application/json",
                "record.count", String.valueOf(number % 5_000)))
            .contentClaim(claim)
            .size(1)
            .build();
    }

    /** Each of `threads` threads makes `calls` calls of `size` records; each thread has FlowFiles of its own. */
    static Map<String, Object> update(final Repositories repositories, final Harness.Job job) throws Exception {
        final int threads = job.number("threads");
        final int calls = job.number("calls");
        final int size = job.number("size");
        if (threads == 1) {
            return Map.of("nanos", Harness.timed(() -> updateSlice(repositories, 0, calls, size)));
        }
        final AtomicLong begin = new AtomicLong();
        final CyclicBarrier gate = new CyclicBarrier(threads, () -> begin.set(System.nanoTime()));
        try (ExecutorService pool = Executors.newFixedThreadPool(threads)) {
            final List<Future<?>> running = new ArrayList<>();
            for (int number = 0; number < threads; number++) {
                final int first = number * size;
                running.add(pool.submit(() -> {
                    gate.await();
                    updateSlice(repositories, first, calls, size);
                    return null;
                }));
            }
            for (final Future<?> thread : running) {
                thread.get();
            }
            return Map.of("nanos", System.nanoTime() - begin.get());
        }
    }

    static void updateSlice(final Repositories repositories, final int first, final int calls, final int size)
            throws Exception {
        for (int call = 0; call < calls; call++) {
            final String status = "seen-" + NUMBER.getAndIncrement() % 100_000; // the same value would be no update
            final List<RepositoryRecord> records = new ArrayList<>(size);
            for (int number = first; number < first + size; number++) {
                final FlowFileRecord old = repositories.queued.get(number);
                final FlowFileRecord flowFile = new StandardFlowFileRecord.Builder()
                    .fromFlowFile(old)
                    .addAttribute("status", status)
                    .lastQueued(System.currentTimeMillis(), number)
                    .build();
                final StandardRepositoryRecord record = new StandardRepositoryRecord(repositories.queue, old);
                record.setWorking(flowFile, "status", status, false);
                record.setDestination(repositories.queue);
                records.add(record);
                repositories.queued.set(number, flowFile);
            }
            repositories.update(records);
        }
    }
}
