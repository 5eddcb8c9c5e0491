package harness;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.nifi.events.EventReporter;
import org.apache.nifi.provenance.IdentifierLookup;
import org.apache.nifi.provenance.ProvenanceEventRecord;
import org.apache.nifi.provenance.ProvenanceEventType;
import org.apache.nifi.provenance.StandardProvenanceEventRecord;
import org.apache.nifi.provenance.WriteAheadProvenanceRepository;
import org.apache.nifi.util.NiFiProperties;

/**
 * Writes provenance events that name contents, in several event files, all but the newest compressed.
 *
 * Arguments: the directory; then contents, each container/section/identifier/offset/size: an event has one of them, and
 * with the number n divisible by 3 as the content before, by 5 as both. A file has 12 KB.
 */
final class Events {
    public static void main(final String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1); // the repository's own threads would go on
        });
        final NiFiProperties properties = NiFiProperties.createBasicNiFiProperties("", Map.ofEntries(
            Map.entry("nifi.provenance.repository.directory.default", arguments[0]),
            Map.entry("nifi.provenance.repository.max.storage.time", "30 days"),
            Map.entry("nifi.provenance.repository.max.storage.size", "10 GB"),
            Map.entry("nifi.provenance.repository.rollover.time", "10 mins"),
            Map.entry("nifi.provenance.repository.rollover.size", "12 KB"),
            Map.entry("nifi.provenance.repository.query.threads", "1"),
            Map.entry("nifi.provenance.repository.index.threads", "1"),
            Map.entry("nifi.provenance.repository.index.shard.size", "500 MB"),
            Map.entry("nifi.provenance.repository.compress.on.rollover", "true"),
            Map.entry("nifi.provenance.repository.indexed.fields", "EventType, FlowFileUUID")));
        final WriteAheadProvenanceRepository repository = new WriteAheadProvenanceRepository(properties);
        repository.initialize(EventReporter.NO_OP, null, null, IdentifierLookup.EMPTY);
        for (int number = 1; number < arguments.length; number++) {
            repository.registerEvents(List.of(event(number, arguments[number].split("/"))));
        }
        repository.registerEvents(List.of(event(0, null)));
        final Path directory = Path.of(arguments[0]);
        while (names(directory, ".prov.gz") < 1 || names(directory, ".prov") > 1) {
            Thread.sleep(20); // files are compressed behind the writer's back
        }
        repository.close();
        Runtime.getRuntime().halt(0);
    }

    private static int names(final Path directory, final String ending) {
        final String[] found = directory.toFile().list((folder, name) -> name.endsWith(ending));
        return found == null ? 0 : found.length;
    }

    private static ProvenanceEventRecord event(final int number, final String[] content) {
        final StandardProvenanceEventRecord.Builder builder = new StandardProvenanceEventRecord.Builder()
            .setEventType(content == null ? ProvenanceEventType.CREATE : ProvenanceEventType.CONTENT_MODIFIED)
            .setFlowFileUUID(new UUID(0, number).toString())
            .setComponentId("component-" + number % 3).setComponentType("Processor")
            .setEventTime(System.currentTimeMillis()).setFlowFileEntryDate(System.currentTimeMillis())
            .setLineageStartDate(System.currentTimeMillis()).setEventDuration(number)
            .setDetails(number % 2 == 0 ? "details" : null)
            .setAttributes(Map.of("before", "größe"), Map.of("uuid", new UUID(0, number).toString(), "filename", "f" + number));
        builder.setCurrentContentClaim(null, null, null, null, 0L);
        if (content != null) {
            final long offset = Long.parseLong(content[3]);
            final long size = Long.parseLong(content[4]);
            if (number % 3 == 0 || number % 5 == 0) {
                builder.setPreviousContentClaim(content[0], content[1], content[2], offset, size);
            }
            if (number % 3 != 0 || number % 5 == 0) {
                builder.setCurrentContentClaim(content[0], content[1], content[2], offset, size);
            }
        }
        return builder.build();
    }
}
