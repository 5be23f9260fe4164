# One image per role: docker build --target server|coordinator|worker|worker-cuda
#
#   server        the HTTP service; no TVM, no torch
#   coordinator   the job loop, whose executor children search with TVM
#   worker        builds, checks and times candidates on its device
#   worker-cuda   the same on an NVIDIA GPU: docker run --gpus device=0; brings NVRTC, the host brings the driver
#
# Everything that is installed is locked with hashes in deploy/*.lock.

FROM python:3.11-slim-bookworm AS python
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1

FROM python AS wheel
WORKDIR /source
COPY deploy/build.lock deploy/build.lock
RUN pip install --require-hashes --only-binary :all: -r deploy/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY pitchpipe pitchpipe
COPY tuner tuner
COPY service service
COPY workers workers
COPY migrations migrations
COPY deploy/pages deploy/pages
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# Libraries come before the wheel: they change less often.
FROM python AS environment
RUN python -m venv /opt/pitchpipe
ENV PATH=/opt/pitchpipe/bin:$PATH

FROM environment AS server-environment
COPY deploy/server.lock /locks/
RUN pip install --require-hashes --only-binary :all: -r /locks/server.lock
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps --no-index /wheels/*.whl

FROM environment AS coordinator-environment
COPY deploy/coordinator.lock /locks/
RUN pip install --require-hashes --only-binary :all: -r /locks/coordinator.lock
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps --no-index /wheels/*.whl

FROM environment AS worker-environment
COPY deploy/worker.lock /locks/
RUN pip install --require-hashes --only-binary :all: -r /locks/worker.lock
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps --no-index /wheels/*.whl

FROM environment AS worker-cuda-environment
COPY deploy/worker-cuda.lock /locks/
RUN pip install --require-hashes --only-binary :all: -r /locks/worker-cuda.lock
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim-bookworm AS runtime
# The folders of blobs and of the lock belong to the user in the image, so that volumes mounted there do too.
RUN groupadd --system --gid 10001 pitchpipe \
    && useradd --system --uid 10001 --gid 10001 --create-home pitchpipe \
    && install --directory --owner=pitchpipe --group=pitchpipe /var/lib/pitchpipe /var/lib/pitchpipe-quiet
ENV PATH=/opt/pitchpipe/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /home/pitchpipe
USER 10001:10001
ENTRYPOINT ["pitchpipe"]

FROM runtime AS coordinator
COPY --from=coordinator-environment /opt/pitchpipe /opt/pitchpipe
CMD ["coordinator"]

FROM runtime AS worker
COPY --from=worker-environment /opt/pitchpipe /opt/pitchpipe
CMD ["worker"]

FROM runtime AS worker-cuda
COPY --from=worker-cuda-environment /opt/pitchpipe /opt/pitchpipe
# What NVIDIA's container runtime mounts: the driver, and the library that tells its version and the clock.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
CMD ["worker", "--target", "cuda"]

# Last, so that a build without --target gives the smallest image.
FROM runtime AS server
COPY --from=server-environment /opt/pitchpipe /opt/pitchpipe
EXPOSE 8734
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8734/healthz', timeout=4)"]
CMD ["server", "--host", "0.0.0.0"]
