"""Bugs of data, learning, execution and programs."""

from tools import mutant

_DATA = (
    mutant.Mutant(
        "Poisson's probability is a little too low",
        'tff_asr/data/cohorts.py',
        ((
            '(sampling.cohort_size << 64) // population',
            '(sampling.cohort_size << 64) // (population + 1)',
        ),),
        ('tests/data/cohorts_test.py',),
    ),
    mutant.Mutant(
        'every round draws the same cohort',
        'tff_asr/data/cohorts.py',
        (('np.array([0, block, 0, 0]', 'np.array([0, 0, 0, 0]'),),
        ('tests/data/cohorts_test.py',),
    ),
    mutant.Mutant(
        'clients shuffle and mask alike',
        'tff_asr/data/pipeline.py',
        ((
            'tf.random.split(tf.random.fold_in(seed,'
            ' _client_number(examples)), 2)',
            'tf.random.split(seed, 2)',
        ),),
        ('tests/data/pipeline_test.py',),
    ),
    mutant.Mutant(
        'every epoch has the same order',
        'tff_asr/data/pipeline.py',
        ((
            'self.shuffle_buffer, seed=tf.cast(order_seed[0], tf.int64)\n',
            'self.shuffle_buffer, seed=tf.cast(order_seed[0], tf.int64),\n'
            '        reshuffle_each_iteration=False,\n',
        ),),
        ('tests/data/pipeline_test.py',),
    ),
    mutant.Mutant(
        'labels stay behind when a chunk is sorted by length',
        'tff_asr/data/pipeline.py',
        ((
            '(key, tf.gather(value, order)) for key, value in whole.items()',
            "(key, value if key == 'labels' else tf.gather(value, order))\n"
            '        for key, value in whole.items()',
        ),),
        ('tests/data/pipeline_test.py',),
    ),
    mutant.Mutant(
        'the utterance that would overfill a batch still joins it',
        'tff_asr/data/packing.py',
        ((
            'padded = (position - start + 1) * lengths[position]',
            'padded = (position - start) * lengths[position]',
        ),),
        ('tests/data/packing_test.py',),
    ),
    mutant.Mutant(
        'utterances too short for their labels are trained on',
        'tff_asr/data/pipeline.py',
        ((
            '        & (output_lengths >= alignment.min_frames(labels,'
            ' label_lengths))\n',
            '',
        ),),
        ('tests/data/pipeline_test.py',),
    ),
    mutant.Mutant(
        'public and private speakers overlap',
        'data_tools/speaker_splits.py',
        ((
            '    for speaker in parts[name]:\n      del free[speaker]\n',
            '    for speaker in parts[name][1:]:\n      del free[speaker]\n',
        ),),
        ('tests/data_tools/speaker_splits_test.py',),
    ),
)

_LEARNING = (
    mutant.Mutant(
        'the delta has the wrong sign',
        'tff_asr/learning/client_update.py',
        ((
            'tf.nest.map_structure(tf.subtract, before, after)',
            'tf.nest.map_structure(tf.subtract, after, before)',
        ),),
        ('tests/learning/client_update_test.py',),
    ),
    mutant.Mutant(
        'stubs count in the mean loss',
        'tff_asr/learning/client_update.py',
        ((
            'tf.maximum(num_utterances, 1.0)',
            "tf.cast(tf.size(batch['example_weights']), tf.float32)",
        ),),
        ('tests/learning/client_update_test.py',),
    ),
    mutant.Mutant(
        'gradients are clipped tensor by tensor',
        'tff_asr/learning/client_update.py',
        ((
            'lambda gradient: gradient * factor, gradients)',
            'lambda gradient: tf.clip_by_norm(gradient, max_norm),'
            ' gradients)',
        ),),
        ('tests/learning/client_update_test.py',),
    ),
    mutant.Mutant(
        'a client finishes its epoch after the last local step',
        'tff_asr/learning/client_update.py',
        ((
            'tf.minimum(num_batches, num_steps - steps)',
            'tf.identity(num_batches)',
        ),),
        ('tests/learning/client_update_test.py',),
    ),
    mutant.Mutant(
        'every round trains with the same seed',
        'tff_asr/learning/fed_avg.py',
        ((
            'seed=tf.random.fold_in(state.seed, state.round_num)',
            'seed=tf.random.fold_in(state.seed, 0)',
        ),),
        (
            'tests/learning/fed_avg_test.py::PlainFederatedAverageTest'
            '::test_sgd_server_and_local_steps',
        ),
    ),
    mutant.Mutant(
        "the server's optimizer starts afresh each round",
        'tff_asr/learning/server_update.py',
        ((
            'return new_state, new_weights, measurements',
            'return state, new_weights, measurements',
        ),),
        ('tests/learning/server_update_test.py',),
    ),
)

_EXECUTION = (
    mutant.Mutant(
        'the last client of a smaller last block is left out',
        'tff_asr/execution/schedule.py',
        ((
            'for number, start in enumerate(range(0, num_clients, block_size))',
            'for number, start in enumerate(\n'
            '          range(0, num_clients - num_clients % block_size,'
            ' block_size))',
        ),),
        ('tests/execution/schedule_test.py',),
    ),
    mutant.Mutant(
        'partial sums beyond the first eight are lost',
        'tff_asr/execution/reduction.py',
        ((
            'for start in range(0, len(level), FAN_IN)',
            'for start in range(0, min(len(level), FAN_IN), FAN_IN)',
        ),),
        ('tests/execution/reduction_test.py',),
    ),
)

_PROGRAMS = (
    mutant.Mutant(
        'rounds are released without a charge',
        'tff_asr/programs/private_rounds.py',
        ((
            'self._ledger.append(ledger_lib.Round(',
            '(lambda charged: True)(ledger_lib.Round(',
        ),),
        ('tests/programs/federated_test.py',),
    ),
    mutant.Mutant(
        'a resumed run repeats its last round',
        'tff_asr/programs/federated.py',
        ((
            "    logging.info('Resuming after round %d.', round_num)\n",
            "    logging.info('Resuming after round %d.', round_num)\n"
            '    round_num -= 1\n',
        ),),
        ('tests/programs/federated_test.py',),
    ),
    mutant.Mutant(
        'a resumed run draws its cohorts from the first one on',
        'tff_asr/programs/federated.py',
        ((
            'iterator = source.iterator(cohort_state)',
            'iterator = source.iterator()',
        ),),
        ('tests/programs/federated_test.py',),
    ),
    mutant.Mutant(
        'a round done again under a new key keeps its clients',
        'tff_asr/programs/private_rounds.py',
        (('cohort_state = self._redrawn(cohort_state)', 'pass'),),
        ('tests/programs/federated_test.py',),
    ),
    mutant.Mutant(
        'a resumed central run reads its data from the start',
        'tff_asr/programs/central.py',
        (('.skip(step))', '.skip(0))'),),
        ('tests/programs/central_test.py',),
    ),
    mutant.Mutant(
        'patience keeps the last weights',
        'tff_asr/programs/central.py',
        ((
            'final = state.weights if patience is None else state.best_weights',
            'final = state.weights',
        ),),
        ('tests/programs/central_test.py',),
    ),
)

MUTANTS = (*_DATA, *_LEARNING, *_EXECUTION, *_PROGRAMS)
