package org.apache.nifi.nar;

/**
 * Stands in for the class loader of NiFi's plugins, of which there are none here. FlowEngine, whose threads do
 * FileSystemRepository's upkeep, sets it as their context loader; the real one needs the whole of NiFi to compile.
 */
public final class NarThreadContextClassLoader extends ClassLoader {
    private static final NarThreadContextClassLoader INSTANCE = new NarThreadContextClassLoader();

    private NarThreadContextClassLoader() {
    }

    public static NarThreadContextClassLoader getInstance() {
        return INSTANCE;
    }
}
