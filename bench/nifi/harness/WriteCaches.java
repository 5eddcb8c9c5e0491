package harness;

import java.lang.reflect.Constructor;
import java.lang.reflect.Parameter;
import org.apache.nifi.controller.repository.ContentRepository;
import org.apache.nifi.controller.repository.claim.ContentClaimWriteCache;
import org.apache.nifi.controller.repository.claim.StandardContentClaimWriteCache;

/**
 * What a session writes contents through. Its constructor takes more from release to release: since 1.17 something that
 * tracks performance, since 2.0 how much a file is appended to, which the repository alone decides before.
 */
final class WriteCaches {
    private WriteCaches() {
    }

    static ContentClaimWriteCache of(final ContentRepository content, final long appendableBytes, final int bufferBytes)
            throws Exception {
        final Constructor<?> constructor = StandardContentClaimWriteCache.class.getConstructors()[0];
        final Parameter[] parameters = constructor.getParameters();
        final Object[] values = new Object[parameters.length];
        for (int i = 0; i < values.length; i++) {
            final Class<?> type = parameters[i].getType();
            if (type == ContentRepository.class) {
                values[i] = content;
            } else if (type == long.class) {
                values[i] = appendableBytes;
            } else if (type == int.class) {
                values[i] = bufferBytes;
            } else {
                values[i] = Class.forName("org.apache.nifi.controller.repository.metrics.NopPerformanceTracker")
                    .getDeclaredConstructor().newInstance();
            }
        }
        return (ContentClaimWriteCache) constructor.newInstance(values);
    }
}
