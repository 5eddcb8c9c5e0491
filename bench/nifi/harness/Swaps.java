package harness;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.nifi.controller.repository.FlowFileRecord;

/** Moving everything in the queue to swap files and back. */
final class Swaps {
    private Swaps() {
    }

    /** In batches of `size`, each its own file; the FlowFiles leave memory. */
    static Map<String, Object> out(final Repositories repositories, final Harness.Job job) throws Exception {
        final int size = job.number("size");
        final List<List<FlowFileRecord>> batches = new ArrayList<>();
        for (int first = 0; first < repositories.queued.size(); first += size) {
            final int end = Math.min(first + size, repositories.queued.size());
            batches.add(new ArrayList<>(repositories.queued.subList(first, end)));
        }
        final int count = repositories.queued.size();
        repositories.queued.clear();
        final long nanos = Harness.timed(() -> {
            for (final List<FlowFileRecord> batch : batches) {
                repositories.swapLocations.add(repositories.swap.swapOut(batch, repositories.queue, null));
            }
        });
        return Map.of("nanos", nanos, "count", count);
    }

    static Map<String, Object> in(final Repositories repositories) throws Exception {
        final long nanos = Harness.timed(() -> {
            for (final String location : repositories.swapLocations) {
                repositories.queued.addAll(repositories.swap.swapIn(location, repositories.queue).getFlowFiles());
            }
        });
        repositories.swapLocations.clear();
        return Map.of("nanos", nanos, "count", repositories.queued.size());
    }
}
