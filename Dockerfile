# Quire's server. It runs on the CPU, or on NVIDIA GPUs if the container has the NVIDIA runtime:
#
#     docker build -t quire .
#     docker run --rm -p 8000:8000 quire                                              # the model that is built in
#     docker run --rm -p 8000:8000 -v ./models:/models quire serve /models/opt-13b --host 0.0.0.0
#     docker run --rm -p 8000:8000 --gpus all quire
FROM debian:bookworm-slim AS build
COPY . /quire
RUN /quire/docker/build /usr/local

FROM debian:bookworm-slim
# CA certificates, to download models from the hub.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home quire \
    && install --directory --owner=quire /models
COPY --from=build /usr/local/bin/quire /usr/local/bin/quire
COPY docker/health /usr/local/bin/quire-health

# Models downloaded from the hub stay in the volume. The binary needs only the compute and utility parts of the driver.
ENV HF_HOME=/models/hub \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER quire
WORKDIR /models
VOLUME /models
EXPOSE 8000
# The server listens at once and is healthy while its model loads. `GET /ready` tells when the model is loaded.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["quire-health"]
ENTRYPOINT ["quire"]
CMD ["serve", "--host", "0.0.0.0"]
