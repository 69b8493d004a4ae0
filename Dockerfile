# One file, four images:
#
#   server      jq-server and jq-ctl
#   worker      jq-worker (and jq-ctl), without the HTTP API's packages
#   taskqueue   the six services of document 000 and its node, chosen by the command: jq-service NAME
#   bench       the benchmarks
#
# `make images` builds them from a wheelhouse, without a network. `docker compose up` builds them as
# well, from the index that pip is set up with; either way every package must have the hash that
# pins/*.txt name. The images run as 10001:10001, need no shell, and write to /data and /tmp only.

# With binutils, which shrinks compiled modules.
ARG BUILD_IMAGE=python:3.11
ARG BASE_IMAGE=python:3.11-slim

# ---------------------------------------------------------------- what builds

FROM ${BUILD_IMAGE} AS build
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_NO_INDEX=${PIP_NO_INDEX} PIP_FIND_LINKS=${PIP_FIND_LINKS} PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# The brackets: a wheelhouse is copied where there is one.
COPY pins buil[d]/wheelhouse /wheelhouse/
COPY deploy/docker/slim.py /build/
RUN python -m venv /build/venv \
 && /build/venv/bin/pip install --require-hashes --only-binary :all: -r /wheelhouse/build.txt \
 && python -m venv --without-pip /opt/jobqueue

# ------------------------------------------------- the packages of each image

FROM build AS server-packages
RUN /build/venv/bin/pip --python /opt/jobqueue/bin/python install --no-compile --require-hashes \
    --only-binary :all: -r /wheelhouse/extras.txt && python /build/slim.py /opt/jobqueue

FROM build AS worker-packages
RUN /build/venv/bin/pip --python /opt/jobqueue/bin/python install --no-compile --require-hashes \
    --only-binary :all: -r /wheelhouse/worker.txt && python /build/slim.py /opt/jobqueue

FROM build AS taskqueue-packages
RUN /build/venv/bin/pip --python /opt/jobqueue/bin/python install --no-compile --require-hashes \
    --only-binary :all: -r /wheelhouse/taskqueue.txt && python /build/slim.py /opt/jobqueue

FROM build AS bench-packages
RUN /build/venv/bin/pip --python /opt/jobqueue/bin/python install --no-compile --require-hashes \
    --only-binary :all: -r /wheelhouse/bench.txt && python /build/slim.py /opt/jobqueue

# -------------------------------------------------------------------- our own

FROM build AS own
COPY pyproject.toml hatch_build.py LICENSE /src/
COPY src /src/src
ARG JQ_COMMIT
RUN /build/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /build/own /src \
 && /build/venv/bin/pip --python /opt/jobqueue/bin/python install --no-compile --no-deps --no-index \
    /build/own/*.whl && python /build/slim.py /opt/jobqueue
COPY scripts/compose_secrets.py scripts/healthcheck.py scripts/ready.py \
    /opt/jobqueue/lib/python3.11/site-packages/scripts/

# ----------------------------------------------------------------- the images

FROM ${BASE_IMAGE} AS runtime
# A new volume takes its owner from the folder that it is mounted on.
RUN mkdir -p /data /run/jobqueue \
 && cd /run/jobqueue && mkdir server worker operator backing monitoring \
 && chown -R 10001:10001 /data /run/jobqueue
WORKDIR /data
ENV PATH=/opt/jobqueue/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ARG JQ_VERSION=unknown
ARG JQ_COMMIT=unknown
LABEL org.opencontainers.image.version=${JQ_VERSION} \
      org.opencontainers.image.revision=${JQ_COMMIT} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.vendor=jobqueue

FROM runtime AS bench
COPY --from=bench-packages /opt/jobqueue /opt/jobqueue
COPY --from=own /opt/jobqueue /opt/jobqueue
LABEL org.opencontainers.image.title=jobqueue-bench \
      org.opencontainers.image.description="Benchmarks of jobqueue"
HEALTHCHECK NONE
ENTRYPOINT ["jq-bench"]
CMD ["--help"]

FROM runtime AS taskqueue
COPY --from=taskqueue-packages /opt/jobqueue /opt/jobqueue
COPY --from=own /opt/jobqueue /opt/jobqueue
LABEL org.opencontainers.image.title=jobqueue-taskqueue \
      org.opencontainers.image.description="The services and the node of the task queue"
# Of a gateway or a node; the compose files say it for each service.
HEALTHCHECK --interval=5s --timeout=2s --retries=12 --start-period=20s \
    CMD ["python", "-m", "scripts.healthcheck", "--mode", "tcp", "--target", "127.0.0.1:50051"]
ENTRYPOINT ["jq-service"]
CMD ["--help"]

FROM runtime AS worker
COPY --from=worker-packages /opt/jobqueue /opt/jobqueue
COPY --from=own /opt/jobqueue /opt/jobqueue
LABEL org.opencontainers.image.title=jobqueue-worker \
      org.opencontainers.image.description="jq-worker: runs the jobs of a jobqueue"
# Another container asks for its metrics.
ENV JQ_WORKER_METRICS_HOST=0.0.0.0
EXPOSE 9464
HEALTHCHECK --interval=5s --timeout=2s --retries=12 --start-period=60s \
    CMD ["python", "-m", "scripts.ready", "http://127.0.0.1:9464/healthz"]
ENTRYPOINT ["jq-worker"]

FROM runtime AS server
COPY --from=server-packages /opt/jobqueue /opt/jobqueue
COPY --from=own /opt/jobqueue /opt/jobqueue
LABEL org.opencontainers.image.title=jobqueue-server \
      org.opencontainers.image.description="jq-server: a distributed job queue"
# The health check asks the default port: with another one, or without HTTP, say it anew.
# In a container, the loopback address is nobody else's. It does not start while everybody might
# call it: set auth.*, or server.insecure where only this machine can reach it.
ENV JQ_HTTP_HOST=0.0.0.0 JQ_GRPC_HOST=0.0.0.0 JQ_DB_URL=sqlite:////data/jobqueue.db
EXPOSE 8080 50051
VOLUME /data
HEALTHCHECK --interval=5s --timeout=2s --retries=12 --start-period=60s \
    CMD ["python", "-m", "scripts.ready", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["jq-server"]
