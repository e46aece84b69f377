# %% [markdown]
# # 4. Your own recordings
#
# From a table of audio files in any language to a model trained with
# differential privacy, and its transcripts. It takes minutes on two CPU cores,
# and needs Python 3.11 (notebook 1 describes the setup).
#
# The recordings here are German. If `TFF_ASR_SPEECH` names a folder with a part
# of Common Voice, they are its hundred clips of real people, which are too few
# to learn from; otherwise eSpeak NG speaks short sentences in sixty voices.

# %%
import csv
import json
import os
import pathlib
import random
import subprocess
import sys

if sys.version_info[:2] != (3, 11):
  raise RuntimeError(
      f'This kernel is Python {sys.version.split()[0]}; 3.11 is needed, see '
      'notebook 1.'
  )
WORK = pathlib.Path('notebook_data') / 'own'
REAL = pathlib.Path(os.environ.get('TFF_ASR_SPEECH', ''), 'common_voice', 'de')


def run(program, *flags):
  """Runs a program of tff_asr, as `tff-asr PROGRAM FLAG ...` in a terminal."""
  subprocess.run(
      [sys.executable, '-m', 'tff_asr', program, *map(str, flags)],
      stderr=subprocess.STDOUT, check=True,
  )


# %% [markdown]
# ## The recordings
#
# Put your own here: a folder, and the speaker and text of each file. Spelling,
# capitals and punctuation need no preparation; any format and rate will do.
# These are WAVs of 44.1 kHz.

# %%
if REAL.is_dir():
  with open(REAL / 'validated.tsv', encoding='utf-8', newline='') as f:
    clips = csv.DictReader(f, delimiter='\t', quoting=csv.QUOTE_NONE)
    rows = [
        (REAL / 'clips' / clip['path'], clip['client_id'], clip['sentence'])
        for clip in clips
    ]
else:
  import numpy as np
  import soundfile
  import soxr
  from data_tools import synthetic_speech

  SENTENCES = (
      'Guten Morgen, {name}!', 'Wie geht es dir, {name}?',
      '{name} möchte {number} {things}.', 'Hast du {number} {things}?',
      'Die {things} sind {color}.', '{name} fährt nach {place}.',
      'In {place} regnet es.', 'Heute ist es schön in {place}.',
  )
  WORDS = {
      'name': 'Anna Jonas Käthe Peter Jürgen Lena'.split(),
      'number': 'zwei drei vier fünf sieben zwölf'.split(),
      'things': 'Äpfel Bücher Stühle Karten Blumen Hüte'.split(),
      'color': 'rot grün blau weiß gelb schön'.split(),
      'place': 'Köln Berlin München Hamburg Zürich Wien'.split(),
  }
  draw, espeak, rows = random.Random(1), synthetic_speech.Espeak(), []
  (WORK / 'wav').mkdir(parents=True, exist_ok=True)
  for voice in synthetic_speech.VARIANTS[:60]:
    for number in range(8):
      text = draw.choice(SENTENCES).format(
          **{kind: draw.choice(words) for kind, words in WORDS.items()}
      )
      speech = espeak.speak(text, voice=f'de+{voice}', rate=160, pitch=50)
      path = WORK / 'wav' / f'{voice}-{number}.wav'
      soundfile.write(
          path,
          soxr.resample(speech.astype(np.float32) / 2**15,
                        espeak.sample_rate_hz, 44_100),
          44_100,
      )
      rows.append((path, voice, text))
  espeak.close()
print(len(rows), 'recordings of', len({who for _, who, _ in rows}), 'speakers')

# %% [markdown]
# ## A table of them
#
# Three columns, separated by tabs. `manifest` reads the table and writes the
# input of training: 16 kHz audio in shards, by speaker. It also splits the
# speakers. Here some are *public* (they agreed to have their recordings
# collected) and most *private*; `dev` speakers are for evaluation during
# training, `test` speakers for the final one. `manifest` also makes the
# alphabet, including ä, ö, ü and ß, and lists the utterances that it left out.

# %%
table = WORK / 'recordings.tsv'
WORK.mkdir(parents=True, exist_ok=True)
with open(table, 'w', encoding='utf-8', newline='') as f:
  writer = csv.writer(f, delimiter='\t')
  writer.writerow(['audio', 'speaker', 'text'])
  writer.writerows((path.absolute(), who, text) for path, who, text in rows)
run('manifest', f'--manifest={table}', f'--output_dir={WORK / "data"}',
    f'--source_dir={rows[0][0].absolute().parent}',  # Nothing else is read.
    '--partition=public=30%,private=rest,dev=10%,test=10%')
print((WORK / 'data' / 'corpus.gin').read_text('utf-8'))

# %% [markdown]
# ## A first model, trained on the public speakers
#
# Three hundred steps of ordinary training. `corpus.gin`, above, sets the
# folders and the alphabet; the other file is an experiment of this project.

# %%
CORPUS = f'--gin_file={WORK / "data" / "corpus.gin"}'
run('train_central', f'--output_dir={WORK / "public"}',
    '--gin_file=gin/experiments/quickstart_seed.gin', CORPUS,
    '--gin_param=NUM_STEPS = 300', '--gin_param=DECAY_START = 200',
    '--gin_param=DECAY_STEPS = 75', '--gin_param=EVALUATE_EVERY = 300')

# %% [markdown]
# ## The private speakers, with differential privacy
#
# Twelve rounds from that first model; fifteen private speakers are expected in
# each. What each one sends is clipped, and noise is added before
# the model changes.

# %%
run('train_federated', f'--output_dir={WORK / "private"}',
    '--gin_file=gin/experiments/quickstart_federated_dp.gin', CORPUS,
    f'--gin_param=INIT_FROM_RUN = "{WORK / "public"}"',
    '--gin_param=NUM_ROUNDS = 12', '--gin_param=COHORT_SIZE = 15',
    '--gin_param=NOISE_MULTIPLIER = 0.012', '--gin_param=TARGET_EPSILON = None',
    '--gin_param=EVALUATE_EVERY = 4')

# %% [markdown]
# The report begins with **NOT PRIVATE**, correctly: noise that lets a model
# learn is too weak to hide one of so few people. `bin/compute_epsilon.py
# --run=... --extrapolate_cohorts=1000,2000` shows how many people the same
# noise would need (notebook 3 shows why). The commands are complete; a
# guarantee needs more people.
#
# ## Did it help, and what does it transcribe?
#
# The test speakers are not in the training data of either model. (The generated
# speakers all say sentences of the same few kinds, which is far easier than
# real speech.)

# %%
run('evaluate', '--gin_file=gin/experiments/quickstart_evaluate.gin', CORPUS,
    f'--gin_param=RUNS = {[str(WORK / "public"), str(WORK / "private")]}')

# %%
test = json.loads((WORK / 'private' / 'test.json').read_text('utf-8'))
before = json.loads((WORK / 'public' / 'test.json').read_text('utf-8'))
for old, new in list(zip(before['hypotheses'], test['hypotheses']))[:40:10]:
  print(f'said      {old["reference"]}\npublic    {old["text"]}\n'
        f'+ private {new["text"]}\n')

# %% [markdown]
# ## Another recording
#
# `transcribe` takes any audio file. In a terminal it is
#
#     tff-asr transcribe --run=notebook_data/own/private recording.wav

# %%
run('transcribe', f'--run={WORK / "private"}', rows[0][0], rows[-1][0])
print('said:', rows[0][2], '/', rows[-1][2])
