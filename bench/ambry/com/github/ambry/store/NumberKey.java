package com.github.ambry.store;

import java.nio.ByteBuffer;

/** A key that is a number: the store asks no more of a key than that it can be written, read and compared. */
final class NumberKey extends StoreKey {
  static final short BYTES = Long.BYTES;

  private final long value;

  NumberKey(final long value) {
    this.value = value;
  }

  @Override
  public byte[] toBytes() {
    return ByteBuffer.allocate(BYTES).putLong(value).array();
  }

  @Override
  public byte[] getUuidBytesArray() {
    return toBytes();
  }

  @Override
  public short sizeInBytes() {
    return BYTES;
  }

  @Override
  public String getID() {
    return String.valueOf(value);
  }

  @Override
  public String getLongForm() {
    return getID();
  }

  @Override
  public boolean isAccountContainerMatch(final short accountId, final short containerId) {
    return true;
  }

  @Override
  public int compareTo(final StoreKey other) {
    return Long.compareUnsigned(value, ((NumberKey) other).value);
  }

  @Override
  public boolean equals(final Object other) {
    return other instanceof NumberKey && ((NumberKey) other).value == value;
  }

  @Override
  public int hashCode() {
    return Long.hashCode(value);
  }

  @Override
  public String toString() {
    return getID();
  }
}
