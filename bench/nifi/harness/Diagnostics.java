package harness;

import java.lang.reflect.Method;
import java.nio.file.NoSuchFileException;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.nifi.controller.FileSystemSwapManager;
import org.apache.nifi.controller.repository.ContentNotFoundException;
import org.apache.nifi.controller.repository.FileSystemRepository;
import org.apache.nifi.controller.repository.ResourceClaimReference;
import org.apache.nifi.controller.repository.WriteAheadFlowFileRepository;
import org.apache.nifi.controller.repository.claim.ResourceClaim;
import org.apache.nifi.controller.repository.claim.ResourceClaimManager;

/**
 * What NiFi's diagnostics tell of its content repository, asked as org.apache.nifi.diagnostics.bootstrap.tasks.
 * ContentRepositoryScanTask asks, which itself wants a whole FlowController: each file that is not in the archive, with
 * its size, its claimants, and the FlowFiles and swap files that refer to it.
 *
 * When NiFi has started, it leaves out those swap files there that only a journal names: its FlowFile repository does not
 * note them down (HashMapSnapshot.swapLocations). Its queues find them all, so these are asked as well.
 *
 * Lines, with tabs between: `#file`, its name, size, claimants, then queue=number of its FlowFiles, or queue=name of a
 * swap file. `#swap`, the name of a swap file, its queue, how many FlowFiles it has, and their bytes. `#archive`, a
 * container, and how many files its archive has. `#orphan` and what is held by a FlowFile of no queue.
 */
final class Diagnostics {
    private Diagnostics() {
    }

    static String of(
            final FileSystemRepository content, final WriteAheadFlowFileRepository flowFiles,
            final FileSystemSwapManager swap, final ResourceClaimManager claims, final Collection<String> ofQueues)
            throws Exception {
        final StringBuilder text = new StringBuilder();
        final Map<String, String> swaps = new TreeMap<>();
        for (final String container : new TreeSet<>(content.getContainerNames())) {
            final Set<ResourceClaim> files = content.getActiveResourceClaims(container);
            final Map<ResourceClaim, Set<ResourceClaimReference>> references =
                flowFiles.findResourceClaimReferences(files, swap);
            for (final ResourceClaim file : new TreeSet<>(files)) {
                final long size;
                try {
                    size = content.size(file);
                } catch (final ContentNotFoundException | NoSuchFileException gone) { // it has just been removed
                    continue;
                }
                text.append("#file\t").append(nameOf(file)).append('\t').append(size).append('\t')
                    .append(claims.getClaimantCount(file));
                final Map<String, Integer> counts = new TreeMap<>();
                final Map<String, String> swapped = new TreeMap<>();
                for (final ResourceClaimReference reference : references.getOrDefault(file, Set.of())) {
                    if (reference.isSwappedOut()) {
                        swapped.put(last(reference.getSwapLocation()), reference.getSwapLocation());
                    } else {
                        counts.merge(reference.getQueueIdentifier(), 1, Integer::sum);
                    }
                }
                for (final String location : ofQueues) {
                    if (swap.getSwapSummary(location).getResourceClaims().contains(file)) {
                        swapped.put(last(location), location);
                    }
                }
                swapped.forEach((name, location) ->
                    text.append('\t').append(swap.getQueueIdentifier(location)).append('=').append(name));
                swaps.putAll(swapped);
                counts.forEach((queue, count) -> text.append('\t').append(queue).append('=').append(count));
                text.append('\n');
            }
            final Method archived = FileSystemRepository.class.getDeclaredMethod("getArchiveCount", String.class);
            archived.setAccessible(true);
            text.append("#archive\t").append(container).append('\t').append(archived.invoke(content, container)).append('\n');
        }
        for (final String location : swaps.values()) {
            text.append("#swap\t").append(last(location)).append('\t').append(swap.getQueueIdentifier(location));
            text.append('\t').append(swap.getSwapSummary(location).getQueueSize().getObjectCount());
            text.append('\t').append(swap.getSwapSummary(location).getQueueSize().getByteCount()).append('\n');
        }
        final Set<ResourceClaim> orphans = flowFiles.findOrphanedResourceClaims();
        for (final ResourceClaim orphan : orphans == null ? Set.<ResourceClaim>of() : orphans) {
            text.append("#orphan\t").append(nameOf(orphan)).append('\n');
        }
        return text.toString();
    }

    private static String nameOf(final ResourceClaim file) {
        return file.getContainer() + "/" + file.getSection() + "/" + file.getId();
    }

    private static String last(final String location) {
        return location.substring(location.lastIndexOf('/') + 1);
    }
}
