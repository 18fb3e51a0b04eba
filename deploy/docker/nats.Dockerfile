# nats-server alone, for machines without a registry; the context holds the binary and an empty data/.
FROM scratch
COPY nats-server /nats-server
COPY --chown=65532:65532 data /data
USER 65532:65532
EXPOSE 4222 6222 8222
ENTRYPOINT ["/nats-server"]
