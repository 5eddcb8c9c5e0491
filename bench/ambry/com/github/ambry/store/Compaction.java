package com.github.ambry.store;

import com.codahale.metrics.MetricRegistry;
import com.github.ambry.config.StoreConfig;
import com.github.ambry.config.VerifiableProperties;
import com.github.ambry.utils.SystemTime;
import com.github.ambry.utils.Utils;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ScheduledExecutorService;

/**
 * One compaction by Ambry's own classes: `Compaction DIRECTORY BLOB_BYTES TOTAL_BYTES SEGMENT_BYTES DEAD_PERCENT SEED`.
 *
 * <p>Puts blobs of one size into a fresh store, deletes a share of them at random, compacts every log segment that
 * Ambry lets be compacted, without a throttle, and prints what was measured as a flat JSON object. The store stays, for
 * the caller to see how large it is. In Ambry's package, because its compactor is not public.
 */
public final class Compaction {
  private static final short OWNER = 1;
  private static final int DELETE_RECORD_BYTES = 100;
  private static final int BUNDLE_BYTES = 10 << 20; // store.compaction.min.buffer.size as shipped
  private static final int INDEX_ELEMENTS_MAX = 10_000; // store.index.max.number.of.inmem.elements as shipped
  private static final int DELETED_BEFORE_MILLIS = 2_000; // Ambry counts the time of a deletion in seconds
  private static final String STORE = "bench";

  private final int blobBytes;
  private final int count;
  private final Random chance;
  private final Log log;
  private final PersistentIndex index;
  private final BlobStoreCompactor compactor;
  private final ScheduledExecutorService scheduler = Utils.newScheduler(1, true);
  private Offset end;

  private Compaction(final String[] arguments) throws Exception {
    final String directory = arguments[0];
    blobBytes = Integer.parseInt(arguments[1]);
    final long total = Long.parseLong(arguments[2]);
    final long segment = Long.parseLong(arguments[3]);
    chance = new Random(Long.parseLong(arguments[5]));
    count = (int) (total / blobBytes);
    final Properties properties = new Properties();
    properties.put("store.segment.size.in.bytes", String.valueOf(segment));
    properties.put("store.deleted.message.retention.minutes", "0");
    // Twice as many of the newest entries are in the journal, whose segments are not compacted: a few, for few blobs.
    properties.put("store.index.max.number.of.inmem.elements", String.valueOf(Math.min(INDEX_ELEMENTS_MAX, count / 16)));
    final StoreConfig config = new StoreConfig(new VerifiableProperties(properties));
    final StoreMetrics metrics = new StoreMetrics(new MetricRegistry());
    final DiskSpaceAllocator allocator =
        new DiskSpaceAllocator(false, null, 0, new StorageManagerMetrics(new MetricRegistry()));
    final long capacity = (2 * total / segment + 8) * segment; // room for the copies
    final DiskIOScheduler unthrottled = new DiskIOScheduler(null);
    final UUID session = UUID.randomUUID();
    final UUID incarnation = UUID.randomUUID();
    log = new Log(directory, capacity, allocator, config, metrics, null);
    index = new PersistentIndex(directory, STORE, scheduler, log, config, new NumberKeyFactory(),
        (read, start, endOffset, factory) -> new MessageStoreRecovery.RecoveryResult(new ArrayList<>(), null, endOffset),
        (reads, factory, recovered) -> null, unthrottled, metrics, SystemTime.getInstance(), session, incarnation);
    compactor = new BlobStoreCompactor(directory, STORE, new NumberKeyFactory(), config, metrics,
        new StoreMetrics("target", new MetricRegistry()), unthrottled, allocator, log, SystemTime.getInstance(), session,
        incarnation, null, null, null);
    compactor.initialize(index);
    end = log.getEndOffset();
  }

  public static void main(final String[] arguments) throws Exception {
    new Compaction(arguments).run(Integer.parseInt(arguments[4]));
    System.exit(0);
  }

  private void run(final int deadPercent) throws Exception {
    final byte[] content = new byte[blobBytes];
    chance.nextBytes(content);
    final List<LogSegmentName> places = new ArrayList<>(count);
    for (int number = 0; number < count; number++) {
      final FileSpan span = append(content);
      places.add(span.getStartOffset().getName());
      final long now = System.currentTimeMillis();
      index.addToIndex(
          new IndexEntry(new NumberKey(number), new IndexValue(blobBytes, span.getStartOffset(), Utils.Infinite_Time, now, OWNER, OWNER)),
          span);
    }
    final boolean[] isDead = new boolean[count];
    int dead = 0;
    for (int number = 0; number < count; number++) {
      if (chance.nextInt(100) < deadPercent) {
        isDead[number] = true;
        dead++;
        index.markAsDeleted(new NumberKey(number), append(new byte[DELETE_RECORD_BYTES]), System.currentTimeMillis());
      }
    }
    index.persistIndex();
    Thread.sleep(DELETED_BEFORE_MILLIS);
    final List<LogSegmentName> segments = index.getLogSegmentsNotInJournal();
    final Set<LogSegmentName> compacted = new HashSet<>(segments);
    long copies = 0;
    for (int number = 0; number < count; number++) {
      if (!isDead[number] && compacted.contains(places.get(number))) {
        copies += blobBytes;
      }
    }
    final long readBefore = bytesRead();
    final long begin = System.nanoTime();
    compactor.compact(new CompactionDetails(System.currentTimeMillis(), segments, null), new byte[BUNDLE_BYTES]);
    final long nanos = System.nanoTime() - begin;
    final long read = bytesRead() - readBefore;
    for (int number = 0; number < count; number += 101) {
      if ((index.findKey(new NumberKey(number)).isDelete()) != isDead[number]) {
        throw new AssertionError("blob " + number + " is not what it was");
      }
    }
    System.out.printf("{\"nanos\": %d, \"copied\": %d, \"read\": %d, \"live\": %d, \"segments\": %d}%n",
        nanos, copies, read, (long) (count - dead) * blobBytes, segments.size());
    index.close(false);
    log.close(false);
  }

  private FileSpan append(final byte[] record) throws Exception {
    log.appendFrom(Channels.newChannel(new ByteArrayInputStream(record)), record.length);
    final FileSpan span = index.log.getFileSpanForMessage(end, record.length);
    end = span.getEndOffset();
    return span;
  }

  /** By system calls of this process, whatever the page cache held. */
  private static long bytesRead() throws Exception {
    return Files.readAllLines(Path.of("/proc/self/io")).stream()
        .filter(line -> line.startsWith("rchar: "))
        .mapToLong(line -> Long.parseLong(line.substring("rchar: ".length())))
        .sum();
  }
}
