package harness;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * Drives Apache NiFi's own classes for the bench: `java harness.Harness DIRECTORY`.
 *
 * <p>One job a line on stdin, one answer a line on stdout, both flat JSON objects. A job names what to do, in which
 * repository, and how much; its answer holds what was measured, times in nanoseconds, or `error`. Repositories stay
 * open between jobs, so that the caller can alternate with other work. The process ends with its input.
 */
public final class Harness {
    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\"\\s*:\\s*(?:\"([^\"]*)\"|([^,}\\s]+))");

    private final Path directory;
    private final Map<String, Repositories> open = new HashMap<>();
    private final Map<String, ToldProvenance> provenance = new HashMap<>();

    private Harness(final Path directory) {
        this.directory = directory;
    }

    public static void main(final String[] arguments) throws Exception {
        final PrintStream answers = System.out;
        System.setOut(System.err); // whatever a library prints is no answer
        final Harness harness = new Harness(Path.of(arguments[0]));
        final BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            answers.println(harness.answer(line));
            answers.flush();
        }
        System.exit(0); // NiFi's executors are no daemons
    }

    private String answer(final String line) {
        try {
            return json(run(new Job(line)));
        } catch (final Throwable error) {
            error.printStackTrace();
            return json(Map.of("error", String.valueOf(error)));
        }
    }

    private Map<String, Object> run(final Job job) throws Exception {
        final String name = job.text("repository", "");
        return switch (job.text("job", "")) {
            case "hello" -> Map.of("java", System.getProperty("java.version"), "provenance", hasProvenance() ? 1 : 0);
            case "open" -> {
                final Repositories opened = new Repositories(directory.resolve(name), job);
                open.put(name, opened);
                yield Map.of("nanos", opened.openNanos, "count", opened.queued.size());
            }
            case "close" -> {
                open.remove(name).close();
                yield Map.of();
            }
            case "write" -> Contents.write(open.get(name), job);
            case "read" -> Contents.read(open.get(name), job);
            case "fill" -> Updates.fill(open.get(name), job);
            case "update" -> Updates.update(open.get(name), job);
            case "checkpoint" -> Map.of("nanos", timed(() -> open.get(name).flowFiles.checkpoint()));
            case "swap_out" -> Swaps.out(open.get(name), job);
            case "swap_in" -> Swaps.in(open.get(name));
            case "drop" -> Drops.drop(open.get(name), job);
            case "write_tails" -> Tails.write(open.get(name), job);
            case "write_mixed" -> Tails.writeMixed(open.get(name), job);
            case "drop_larger" -> Tails.dropLarger(open.get(name), job);
            case "drop_all_but_one" -> Tails.dropAllButOne(open.get(name), job);
            case "replay" -> Tails.replay(open.get(name));
            case "provenance_open" -> {
                provenance.put(name, openProvenance(directory.resolve(name), job.flag("sync")));
                yield Map.of();
            }
            case "provenance_close" -> {
                provenance.remove(name).close();
                yield Map.of();
            }
            case "register" -> provenance.get(name).register(job);
            case "query" -> provenance.get(name).query(job);
            case "lineage" -> provenance.get(name).lineage(job);
            case "heap" -> Map.of("bytes", usedHeap());
            default -> throw new IllegalArgumentException("no such job: " + job);
        };
    }

    /** A provenance repository; what implements it is compiled only where NiFi's classes for it are at hand. */
    interface ToldProvenance {
        Map<String, Object> register(Job job) throws Exception;

        Map<String, Object> query(Job job) throws Exception;

        Map<String, Object> lineage(Job job) throws Exception;

        void close();
    }

    private static boolean hasProvenance() {
        return Harness.class.getResource("Provenance.class") != null;
    }

    private static ToldProvenance openProvenance(final Path directory, final boolean sync) throws Exception {
        return (ToldProvenance) Class.forName("harness.Provenance")
            .getDeclaredConstructor(Path.class, boolean.class)
            .newInstance(directory, sync);
    }

    /** Work that may fail. */
    interface Work {
        void run() throws Exception;
    }

    static long timed(final Work work) throws Exception {
        final long begin = System.nanoTime();
        work.run();
        return System.nanoTime() - begin;
    }

    /** Bytes of the heap that live objects occupy. */
    private static long usedHeap() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    private static String json(final Map<String, Object> fields) {
        return fields.entrySet().stream()
            .map(field -> "\"" + field.getKey() + "\": " + value(field.getValue()))
            .collect(Collectors.joining(", ", "{", "}"));
    }

    private static String value(final Object value) {
        return value instanceof Number ? value.toString() : '"' + value.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'") + '"';
    }

    /** The fields of one job. */
    static final class Job {
        private final Map<String, String> fields = new LinkedHashMap<>();

        Job(final String line) {
            final Matcher matcher = FIELD.matcher(line);
            while (matcher.find()) {
                fields.put(matcher.group(1), matcher.group(2) == null ? matcher.group(3) : matcher.group(2));
            }
        }

        String text(final String name, final String otherwise) {
            return fields.getOrDefault(name, otherwise);
        }

        int number(final String name) {
            return Integer.parseInt(fields.get(name));
        }

        boolean flag(final String name) {
            return Boolean.parseBoolean(fields.get(name));
        }

        @Override
        public String toString() {
            return fields.toString();
        }
    }
}
