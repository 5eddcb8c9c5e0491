package harness;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.nifi.events.EventReporter;
import org.apache.nifi.provenance.AsyncLineageSubmission;
import org.apache.nifi.provenance.IdentifierLookup;
import org.apache.nifi.provenance.ProvenanceEventRecord;
import org.apache.nifi.provenance.ProvenanceEventType;
import org.apache.nifi.provenance.SearchableFields;
import org.apache.nifi.provenance.StandardProvenanceEventRecord;
import org.apache.nifi.provenance.StandardQueryResult;
import org.apache.nifi.provenance.WriteAheadProvenanceRepository;
import org.apache.nifi.provenance.lineage.ComputeLineageResult;
import org.apache.nifi.provenance.search.Query;
import org.apache.nifi.provenance.search.SearchTerms;
import org.apache.nifi.util.NiFiProperties;

/** NiFi's provenance repository with its shipped settings: registering, which has the index follow, and asking. */
final class Provenance implements Harness.ToldProvenance {
    private static final int RESULTS = 100;
    private static final int ATTEMPTS = 30;
    private static final int ATTEMPT_SECONDS = 2;
    private static final int LINEAGE_EVENTS = 10;
    private static final int REMEMBERED = 10_000;

    private final WriteAheadProvenanceRepository repository;
    private final List<String> told = new ArrayList<>();
    private int number;

    Provenance(final Path directory, final boolean sync) throws Exception {
        final NiFiProperties properties = NiFiProperties.createBasicNiFiProperties("", Map.ofEntries(
            Map.entry("nifi.provenance.repository.directory.default", directory.toString()),
            Map.entry("nifi.provenance.repository.max.storage.time", "30 days"),
            Map.entry("nifi.provenance.repository.max.storage.size", "10 GB"),
            Map.entry("nifi.provenance.repository.rollover.time", "10 mins"),
            Map.entry("nifi.provenance.repository.rollover.size", "100 MB"),
            Map.entry("nifi.provenance.repository.query.threads", "2"),
            Map.entry("nifi.provenance.repository.index.threads", "2"),
            Map.entry("nifi.provenance.repository.index.shard.size", "500 MB"),
            Map.entry("nifi.provenance.repository.compress.on.rollover", "true"),
            Map.entry("nifi.provenance.repository.indexed.fields", "EventType, FlowFileUUID, Filename, ProcessorID, Relationship"),
            Map.entry("nifi.provenance.repository.always.sync", String.valueOf(sync))));
        repository = new WriteAheadProvenanceRepository(properties);
        repository.initialize(EventReporter.NO_OP, null, null, IdentifierLookup.EMPTY);
        final String first = UUID.randomUUID().toString();
        repository.registerEvents(List.of(event(first, ProvenanceEventType.DROP)));
        while (find(first).isEmpty()) { // the index is made with the first event
            Thread.sleep(1);
        }
    }

    /**
     * Registers `count` events in calls of `size`, each of a FlowFile with five attributes that is gone. `nanos` until
     * the last call returned, when at most a thousand wait for the index; `indexed` until the last one is found.
     */
    @Override
    public Map<String, Object> register(final Harness.Job job) throws Exception {
        final int size = job.number("size");
        final int calls = Math.max(1, job.number("count") / size);
        final List<List<ProvenanceEventRecord>> batches = new ArrayList<>(calls);
        String last = null;
        for (int call = 0; call < calls; call++) {
            final List<ProvenanceEventRecord> batch = new ArrayList<>(size);
            for (int i = 0; i < size; i++) {
                last = UUID.randomUUID().toString();
                batch.add(event(last, ProvenanceEventType.DROP));
            }
            if (told.size() < REMEMBERED) {
                told.add(last);
            }
            batches.add(batch);
        }
        final long begin = System.nanoTime();
        for (final List<ProvenanceEventRecord> batch : batches) {
            repository.registerEvents(batch);
        }
        final long registered = System.nanoTime() - begin;
        while (find(last).isEmpty()) {
            Thread.sleep(1);
        }
        return Map.of("nanos", registered, "indexed", System.nanoTime() - begin, "count", calls * size);
    }

    /** Queries by the uuid of FlowFiles whose events were registered: how long each took, as percentiles. */
    @Override
    public Map<String, Object> query(final Harness.Job job) throws Exception {
        final Random chance = new Random(job.number("seed"));
        final long[] times = new long[job.number("count")];
        for (int i = 0; i < times.length; i++) {
            final String uuid = told.get(chance.nextInt(told.size()));
            times[i] = Harness.timed(() -> {
                if (find(uuid).size() != 1) {
                    throw new AssertionError("no event of " + uuid);
                }
            });
        }
        return percentiles(times);
    }

    /** The lineage of one FlowFile of ten events, asked for `count` times. */
    @Override
    public Map<String, Object> lineage(final Harness.Job job) throws Exception {
        final String uuid = UUID.randomUUID().toString();
        for (int i = 0; i < LINEAGE_EVENTS; i++) {
            repository.registerEvents(List.of(event(uuid, ProvenanceEventType.SEND)));
        }
        while (find(uuid).size() < LINEAGE_EVENTS) {
            Thread.sleep(1);
        }
        final long[] times = new long[job.number("count")];
        for (int i = 0; i < times.length; i++) {
            times[i] = Harness.timed(() -> {
                final ComputeLineageResult result =
                    ((AsyncLineageSubmission) repository.submitLineageComputation(uuid, null)).getResult();
                result.awaitCompletion(1, TimeUnit.MINUTES);
                if (result.getNodes().size() < LINEAGE_EVENTS) {
                    throw new AssertionError("a lineage of " + result.getNodes().size() + " nodes");
                }
            });
        }
        return percentiles(times);
    }

    @Override
    public void close() {
        repository.close();
    }

    /** NiFi loses a query now and then that comes while it makes an index: such a one is asked again. */
    private List<ProvenanceEventRecord> find(final String uuid) throws InterruptedException {
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            final Query query = new Query("bench"); // a name of its own each, and NiFi refuses the eleventh
            query.addSearchTerm(SearchTerms.newSearchTerm(SearchableFields.FlowFileUUID, uuid, false));
            query.setMaxResults(RESULTS);
            final StandardQueryResult result = (StandardQueryResult) repository.submitQuery(query, null).getResult();
            if (result.awaitCompletion(ATTEMPT_SECONDS, TimeUnit.SECONDS)) {
                return result.getMatchingEvents();
            }
            if (result.getError() != null) {
                throw new AssertionError(result.getError());
            }
        }
        throw new AssertionError("no answer about " + uuid);
    }

    private ProvenanceEventRecord event(final String uuid, final ProvenanceEventType type) {
        final long now = System.currentTimeMillis();
        final int own = number++;
        return new StandardProvenanceEventRecord.Builder()
            .setEventType(type)
            .setEventTime(now)
            .setFlowFileEntryDate(now)
            .setLineageStartDate(now)
            .setFlowFileUUID(uuid)
            .setComponentId("bench")
            .setComponentType("Bench")
            .setCurrentContentClaim(null, null, null, null, 0)
            .setTransitUri(type == ProvenanceEventType.SEND ? "sftp://example.org" : null)
            .setAttributes(
                Map.of(
                    "uuid", uuid, // NiFi reads it back from here
                    "filename", "reading-%09d.json".formatted(own),
                    "path", "/sensors/%03d/".formatted(own % 1_000),
                    "mime.type", "application/json",
                    "source.host", "gateway-%02d.example".formatted(own % 97),
                    "record.count", String.valueOf(own % 5_000)),
                Map.of())
            .build();
    }

    private static Map<String, Object> percentiles(final long[] times) {
        Arrays.sort(times);
        return Map.of(
            "median", times[times.length / 2],
            "p99", times[Math.min(times.length - 1, times.length * 99 / 100)]);
    }
}
