# Runs lingvo-moe-serve with the model that is mounted at /model: see docs/howto/serve.md.
FROM python:3.13-slim

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt '/src[serve]' && rm -r /src && useradd --system serve

USER serve
ENV TF_CPP_MIN_LOG_LEVEL=2 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
HEALTHCHECK --start-period=120s --interval=10s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["lingvo-moe-serve", "--host=0.0.0.0"]
CMD ["--model=/model"]
