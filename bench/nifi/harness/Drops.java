package harness;

import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.nifi.controller.queue.FlowFileQueue;
import org.apache.nifi.controller.repository.FlowFileRecord;
import org.apache.nifi.controller.repository.RepositoryRecord;
import org.apache.nifi.controller.repository.StandardRepositoryRecord;
import org.apache.nifi.controller.repository.claim.ResourceClaim;

/** How long other sessions' commits wait while many resource claims die at once. */
final class Drops {
    private static final int BATCH = 10_000;
    private static final int SECTIONS = 1_024;
    private static final int PAUSE_MILLIS = 2; // as the caller's prober: it is to see pauses, not to cause them
    private static final int FIRST_NUMBER = 100_000_000; // above those that `fill` uses

    private Drops() {
    }

    /**
     * Makes `count` resource claims, each a file of one byte with one FlowFile. Then drops these FlowFiles and runs the
     * checkpoint that lets the claims go, while another thread commits single updates and notes how long each takes.
     */
    static Map<String, Object> drop(final Repositories repositories, final Harness.Job job) throws Exception {
        final List<FlowFileRecord> doomed = doomed(repositories, job.number("count"));
        repositories.flowFiles.checkpoint();
        final int own = repositories.queued.size();
        Updates.fill(repositories, new Harness.Job("{\"count\": 1}"));
        final AtomicBoolean isDone = new AtomicBoolean();
        final CountDownLatch started = new CountDownLatch(1);
        final List<Long> waits = new ArrayList<>();
        try (ExecutorService prober = Executors.newSingleThreadExecutor()) {
            final Future<?> probing = prober.submit(() -> {
                while (!isDone.get()) {
                    waits.add(Harness.timed(() -> Updates.updateSlice(repositories, own, 1, 1)));
                    started.countDown();
                    Thread.sleep(PAUSE_MILLIS);
                }
                return null;
            });
            started.await();
            final long nanos = Harness.timed(() -> {
                for (int first = 0; first < doomed.size(); first += BATCH) {
                    repositories.update(deletions(repositories, doomed.subList(first, Math.min(first + BATCH, doomed.size()))));
                }
                repositories.flowFiles.checkpoint();
            });
            isDone.set(true);
            probing.get();
            Collections.sort(waits);
            return Map.of(
                "nanos", nanos,
                "longest", waits.getLast(),
                "median", waits.get(waits.size() / 2),
                "commits", waits.size());
        }
    }

    private static List<FlowFileRecord> doomed(final Repositories repositories, final int count) throws Exception {
        final int perSection = (count + SECTIONS - 1) / SECTIONS;
        final List<FlowFileRecord> doomed = new ArrayList<>(count);
        for (int first = 0; first < count; first += BATCH) {
            final List<RepositoryRecord> records = new ArrayList<>(BATCH);
            for (int i = first; i < Math.min(first + BATCH, count); i++) {
                final int number = i % perSection * SECTIONS + i / perSection; // a section after the other: quicker
                final ResourceClaim resource = Updates.resource(repositories, FIRST_NUMBER + number);
                Files.write(repositories.contentPath.resolve(resource.getSection()).resolve(resource.getId()), new byte[1]);
                repositories.claims.incrementClaimantCount(resource);
                final FlowFileRecord flowFile = Updates.flowFile(repositories, number, resource, 0);
                doomed.add(flowFile);
                records.add(repositories.creation(flowFile));
            }
            repositories.update(records);
        }
        return doomed;
    }

    static List<RepositoryRecord> deletions(final Repositories repositories, final List<FlowFileRecord> flowFiles) {
        final List<RepositoryRecord> records = new ArrayList<>(flowFiles.size());
        for (final FlowFileRecord flowFile : flowFiles) {
            final FlowFileQueue queue = repositories.queue;
            final StandardRepositoryRecord record = new StandardRepositoryRecord(queue, flowFile);
            record.setDestination(queue);
            record.markForDelete();
            records.add(record);
        }
        return records;
    }
}
