# The engine server as one file, for pods of stock vLLM images; the build context is the
# repository root.
#   docker build -f engine-image/server.Dockerfile -t enginecore/server:0.1.0 .
# An init container copies the file to where the image's own Python runs it, so that no node pulls
# the engine image for it. BASE_IMAGE needs python3 and cp.
ARG BASE_IMAGE=docker.io/library/python:3.13-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY engine-image/build_zipapp.py build_zipapp.py
COPY client/src client/src
COPY engine-image/src engine-image/src
RUN python3 build_zipapp.py client/src engine-image/src /enginecore-server.pyz

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="enginecore-server" \
      org.opencontainers.image.description="Engine server as one file, to be copied into a pod" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /enginecore-server.pyz /enginecore-server.pyz
USER 65532:65532
WORKDIR /
CMD ["sha256sum", "/enginecore-server.pyz"]
