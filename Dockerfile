# docker build -t duplex .
# docker run --rm -p 8091:8091 -e DUPLEX_API_KEYS=change-me duplex
# On GPUs: docker run --gpus all ... duplex serve /models/moshi --devices 0,1

FROM python:3.12-slim AS build
ARG TORCH=torch==2.13.0
# An index with CPU-only builds of torch makes the image some gigabytes smaller.
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/duplex
RUN /opt/duplex/bin/pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH"
WORKDIR /src
COPY . .
RUN /opt/duplex/bin/pip install .

FROM python:3.12-slim
RUN useradd --system --create-home --uid 10001 duplex
COPY --from=build /opt/duplex /opt/duplex
ENV PATH=/opt/duplex/bin:$PATH PYTHONUNBUFFERED=1 DUPLEX_HOST=0.0.0.0
USER duplex
WORKDIR /home/duplex
EXPOSE 8091
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
  CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ.get(\"DUPLEX_PORT\", 8091)}/ready', timeout=2)"]
ENTRYPOINT ["duplex"]
CMD ["serve"]
