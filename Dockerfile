# Quire's server, for the CPU, and for NVIDIA GPUs where the container has the NVIDIA runtime:
#
#     docker build -t quire .
#     docker run --rm -p 8000:8000 quire                                              # the model that is built in
#     docker run --rm -p 8000:8000 -v ./models:/models quire serve /models/opt-13b --host 0.0.0.0
#     docker run --rm -p 8000:8000 --gpus all quire
FROM debian:bookworm-slim AS build
COPY . /quire
RUN /quire/docker/build /usr/local

FROM debian:bookworm-slim
# Roots of trust, to load models from the hub with.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home quire \
    && install --directory --owner=quire /models
COPY --from=build /usr/local/bin/quire /usr/local/bin/quire
COPY docker/health /usr/local/bin/quire-health

# What models the hub has sent stays in the volume, too. The binary needs of the driver what computes, and nothing else.
ENV HF_HOME=/models/hub \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER quire
WORKDIR /models
VOLUME /models
EXPOSE 8000
# The server listens at once and is healthy while its model loads; `GET /ready` says when that is done.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["quire-health"]
ENTRYPOINT ["quire"]
CMD ["serve", "--host", "0.0.0.0"]
