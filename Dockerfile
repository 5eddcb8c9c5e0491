# The images of Ullage: docker build --target agent|operator|spark .
# Any Debian 12 with Python 3.11 will do as a base. It is pinned by the digest of its index, for every platform, and every
# Python package by its hash.
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
# For the labels: what of it is known is said by --build-arg REVISION=$(git rev-parse HEAD).
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown

FROM ${BASE_IMAGE} AS build
# The way to PyPI, where it is not the usual one. In this stage only: no image has it.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# The same tree gives the same files: bytecode holds its source's digest instead of a time, sets have one order.
ENV SOURCE_DATE_EPOCH=1580601600 PYTHONHASHSEED=0
WORKDIR /src
COPY deploy/requirements-build.lock deploy/
RUN python3 -m venv /build && /build/bin/pip install --quiet --require-hashes --requirement deploy/requirements-build.lock

FROM build AS build-agent
COPY deploy/requirements-agent.lock deploy/
RUN python3 -m venv --without-pip /opt/ullage \
    && /build/bin/pip --python /opt/ullage/bin/python install --quiet --require-hashes --requirement deploy/requirements-agent.lock
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /build/bin/pip --python /opt/ullage/bin/python install --quiet --no-deps --no-index /wheels/*.whl

# ---- agent: one on each node. Its volume must be writable for user 10001; root works too. Runs on a read-only root
# with a writable /run/ullage (its socket) and /tmp.
FROM ${BASE_IMAGE} AS agent
COPY --from=build-agent /opt/ullage /opt/ullage
ENV PATH=/opt/ullage/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8480 8481 8482 8484
ENTRYPOINT ["ullage", "serve"]
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="Ullage agent" \
    org.opencontainers.image.description="Keeps the content of data flows on the disks of one node, and gives the space of what is dead back" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.source="$SOURCE"

# ---- operator: one in a cluster. Takes from the agent's package the contract that both speak.
FROM build AS build-operator
COPY deploy/requirements-operator.lock deploy/
RUN python3 -m venv --without-pip /opt/ullage \
    && /build/bin/pip --python /opt/ullage/bin/python install --quiet --require-hashes --requirement deploy/requirements-operator.lock
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY operator operator
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /build/bin/pip --python /opt/ullage/bin/python install --quiet --no-deps --no-index /wheels/*.whl

FROM ${BASE_IMAGE} AS operator
COPY --from=build-operator /opt/ullage /opt/ullage
ENV PATH=/opt/ullage/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["ullage-operator"]
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="Ullage operator" \
    org.opencontainers.image.description="Runs Ullage's agents on Kubernetes and opens windows for giving space back" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.source="$SOURCE"

# ---- spark: Spark's driver and executors on Kubernetes, and whatever launches them.
FROM build AS build-spark
COPY deploy/requirements-spark.lock deploy/
RUN /build/bin/pip wheel --quiet --no-build-isolation --require-hashes --wheel-dir /spark-wheels --requirement deploy/requirements-spark.lock \
    && python3 -m venv --without-pip /opt/spark-python \
    && /build/bin/pip --python /opt/spark-python/bin/python install --quiet --no-deps --no-index /spark-wheels/*.whl
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY spark spark
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /build/bin/pip --python /opt/spark-python/bin/python install --quiet --no-deps --no-index /wheels/*.whl

FROM ${BASE_IMAGE} AS spark
# What is installed leaves the time of day behind: in logs, in a cache, and in Java's list of authorities.
RUN --mount=type=bind,source=deploy/steady_keystore.py,target=/tmp/steady_keystore.py apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null \
    && python3 /tmp/steady_keystore.py /etc/ssl/certs/java/cacerts 1580601600000 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* \
              /var/log/alternatives.log /var/log/apt/* /var/log/dpkg.log
COPY --from=build-spark /opt/spark-python /opt/spark-python
COPY deploy/spark-entrypoint /opt/entrypoint
COPY deploy/ullage_spark_submit.py /opt/ullage-spark.py
ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/spark-python/bin/python PYSPARK_DRIVER_PYTHON=/opt/spark-python/bin/python \
    PATH=/opt/spark-python/bin:/opt/spark/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
# Spark asks for the name of the user that it runs as. It is not the agent's: that one may write into the socket's folder.
RUN ln -s /opt/spark-python/lib/python3*/site-packages/pyspark /opt/spark \
    && SOURCE_DATE_EPOCH=1580601600 /usr/sbin/useradd --uid 10002 --user-group --home-dir /tmp --shell /usr/sbin/nologin spark
USER 10002:10002
WORKDIR /tmp
ENTRYPOINT ["/opt/entrypoint"]
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="Ullage spark" \
    org.opencontainers.image.description="Spark with Ullage's data source, for drivers, executors and launchers" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.source="$SOURCE"
