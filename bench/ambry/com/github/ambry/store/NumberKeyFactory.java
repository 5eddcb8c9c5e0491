package com.github.ambry.store;

import java.io.DataInputStream;
import java.io.IOException;

/** Reads the keys of the bench. */
final class NumberKeyFactory implements StoreKeyFactory {
  @Override
  public StoreKey getStoreKey(final DataInputStream stream) throws IOException {
    return new NumberKey(stream.readLong());
  }

  @Override
  public StoreKey getStoreKey(final String input) {
    return new NumberKey(Long.parseLong(input));
  }
}
