# An image with what requirements.txt pins and this project. NOT BUILT YET: where
# the project is developed there is no Docker engine. The two RUN lines of pip
# were run by /bin/sh in an environment of Python 3.11 instead; the base image,
# useradd and the lines after it are checked by reading only.
#
#   docker build -t tff_asr .
#   docker run --rm -v "$PWD/data:/data" tff_asr train_federated \
#       --output_dir=/data/runs/x --gin_file=gin/experiments/EXPERIMENT.gin
#
# It runs as user 1000, who must be able to write to data/.
#
# For GPUs, `docker build --build-arg EXTRAS="-r requirements-gpu.txt" .`, and run
# with `--gpus all` and `--gin_file=gin/execution/gpu.gin`.
FROM python:3.11-slim-bookworm

ARG EXTRAS=""
WORKDIR /opt/tff_asr
COPY requirements*.txt ./
# --no-deps: the lock is complete, and TFF's own pins cannot be resolved.
RUN pip install --no-cache-dir --no-deps -r requirements.txt $EXTRAS
COPY . .
RUN pip install --no-cache-dir --no-deps .

ENV PYTHONUNBUFFERED=1
RUN useradd --create-home tff_asr
USER tff_asr
WORKDIR /home/tff_asr
ENTRYPOINT ["tff-asr"]
CMD ["--help"]
