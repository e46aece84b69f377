# An image with what requirements.txt pins and this project. NOT BUILT YET: where
# the project is developed there is no Docker.
#
#  docker build -t tff_asr .
#   docker run --rm -v "$PWD/data:/data" tff_asr bin/train_federated.py \
#       --output_dir=/data/runs/x --gin_file=gin/experiments/EXPERIMENT.gin
#
# For GPUs, add to the second RUN line `-r requirements-gpu.txt`, and run with
# `--gpus all` and `--gin_file=gin/execution/gpu.gin`.
FROM python:3.11-slim

RUN useradd --create-home tff_asr
WORKDIR /home/tff_asr/project
COPY requirements.txt requirements-gpu.txt requirements-ray.txt ./
# --no-deps: the lock is complete, and TFF's own pins cannot be resolved.
RUN pip install --no-cache-dir --no-deps -r requirements.txt
COPY . .
ENV PYTHONPATH=/home/tff_asr/project PYTHONUNBUFFERED=1
USER tff_asr
ENTRYPOINT ["python"]
CMD ["bin/train_federated.py", "--help"]
