# The service without torch: drawings, sentences, and memories in a file or in PostgreSQL.
#   docker build --tag apl .
#   docker run --rm --volume apl:/data apl serve --make-token --tokens /data/tokens.json --grant '*=admin'
#   docker run --publish 8000:8000 --volume apl:/data apl
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/apl \
 && /opt/apl/bin/pip install --no-cache-dir --no-compile --constraint constraints.txt '.[service,postgres,text]' \
 && /opt/apl/bin/pip uninstall --yes pip \
 && find /opt/apl -type d -name tests -prune -exec rm -r {} +

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 apl && install --directory --owner apl /data
COPY --from=build /opt/apl /opt/apl
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
ENV PATH=/opt/apl/bin:$PATH PYTHONDONTWRITEBYTECODE=1
HEALTHCHECK --start-period=20s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["apl"]
CMD ["serve", "--host", "0.0.0.0", "--memory", "/data/memories.apl", "--tokens", "/data/tokens.json"]
