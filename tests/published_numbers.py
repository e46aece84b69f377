"""Numbers of https://arxiv.org/abs/2310.00098 that docs and files state.

Typed from the paper's tables, not from this project's files: word error rates
in %, dev/test of Common Voice, test-clean/test-other of LibriSpeech.
"""

# Table, row and column: Tables 3 and 4 by start and cohort; `central` and
# `seed` are columns of their own.
_COHORTS = (8, 16, 32, 64, 128, 256)


def _row(*values: str) -> dict[int, str]:
  return dict(zip(_COHORTS, values))


TABLE_3 = {
    'LS-960': _row('6.7/17.5', '5.1/13.7', '4.2/11.1', '3.4/8.8'),
    'LS-100 to LS-860': _row('3.4/9.0', '3.2/8.3', '3.0/7.6', '2.9/7.1'),
    'CV-en to LS-960': _row('4.3/10.3', '3.8/9.4', '3.5/8.6', '3.2/7.8'),
    'seed CV-en': {None: '15.5/25.9'},
    'seed LS-100': {None: '6.7/19.5'},
}
TABLE_4 = {
    'CV-en': _row(
        '62.9/66.7', '51.9/56.5', '41.3/46.3', '32.9/38.0', '27.2/31.9',
        '21.3/25.7',
    ),
    'CV-en-05 to 95': _row(
        '26.6/31.6', '24.3/28.9', '22.7/27.0', '21.2/25.4', '19.8/23.8',
        '18.2/22.1',
    ),
    'CV-en-10 to 90': _row(
        '20.3/24.4', '18.9/22.8', '17.7/21.5', '16.7/20.1', '15.7/19.1',
        '14.8/18.0',
    ),
    'LS-100 to CV-en': _row(
        '24.5/28.8', '22.2/26.3', '20.1/23.9', '18.4/22.0', '16.8/20.2',
        '15.6/18.9',
    ),
    'LS-960 to CV-en': _row(
        '19.7/23.5', '18.1/21.6', '16.9/20.2', '15.6/18.8', '14.5/17.6',
        '13.7/16.6',
    ),
    'CV-en, central': {None: '15.1/18.2'},
    'CV-en-05 to 95, central': {None: '15.2/18.3'},
    'CV-en-10 to 90, central': {None: '14.5/17.6'},
    'LS-100 to CV-en, central': {None: '14.7/17.8'},
    'LS-960 to CV-en, central': {None: '14.1/17.2'},
}
TABLE_15 = {'CV-en, no seed': {32: '39.9/44.7'}}
TABLE_16 = {
    'LS-100 to CV-en, 10 steps': {
        256: '15.6/18.6', 512: '16.8/20.0', 1024: '15.7/18.9',
        2048: '14.9/17.8', 3072: '14.5/17.4', 4096: '14.3/17.2',
        5120: '14.1/16.9',
    },
    'LS-100 to CV-en, central, batches 3x': {None: '12.7/15.6'},
    'LS-960 to CV-en, central, batches 3x': {None: '12.0/14.8'},
}
# By split and sigma_DP in 1e-6, at 1,024 clients.
TABLE_17 = {
    'dim': {
        50: '26.4/30.6', 30: '24.2/28.2', 20: '22.6/26.5', 10: '20.1/23.7',
        3: '17.1/20.4', 1: '16.0/19.3',
    },
    'global': {
        10: '30.7/35.2', 3: '27.0/31.1', 1.8: '25.8/29.2', 1: '22.9/26.7',
        0.6: '21.3/25.0',
    },
}
TABLE_18 = {
    'CV-fr-10 to 90, dim': {10: '15.6/17.9', 3: '13.9/16.0', 0: '13.2/15.2'},
    'CV-fr-10 to 90, global': {3: '14.1/16.2', 0: '13.2/15.2'},
    'CV-de-10 to 90, dim': {10: '12.3/13.9', 3: '10.5/12.0', 0: '9.7/11.0'},
    'CV-de-10 to 90, global': {3: '10.7/12.1', 0: '9.7/11.0'},
}
TABLE_20 = {
    'LS-960 to CV-en, dim': {
        30: '18.7/22.2', 10: '16.5/19.7', 3: '14.9/17.8', 0: '14.0/16.8',
    },
    'LS-960 to CV-en, global': {
        30: '22.5/26.1', 10: '20.5/24.1', 3: '18.1/21.6', 0: '13.9/16.7',
    },
}
# Sigma 0 is printed in the column of global clipping.
TABLE_21 = {
    'narrow, global': {0: '15.2/18.2', 10: '27.5/31.7'},
    'narrow, uniform': {10: '19.5/23.2'},
    'shallow, global': {0: '16.3/19.8', 10: '30.6/35.1'},
    'shallow, uniform': {10: '20.9/24.8'},
    'baseline, global': {0: '14.7/17.6', 10: '29.9/34.6'},
    'baseline, uniform': {10: '19.7/23.3'},
    'wide, global': {0: '13.7/16.6', 10: '20.8/24.7'},
    'wide, uniform': {10: '20.0/23.7'},
    'deep, global': {0: '14.2/17.2', 10: '21.7/25.7'},
    'deep, uniform': {10: '22.4/26.4'},
}
# Table 22: A100 hours by file and cohort, or by file, language and whether
# there is noise.
HOURS_OF_PASSES = {
    'ls_federated_from_seed': {8: 106, 16: 206, 32: 382, 64: 1112},
    'cv_en_federated_from_ls': {16: 84, 32: 124, 64: 196, 128: 338, 256: 1216},
}
HOURS_OF_STEPS = {
    ('en', True): 1120, ('en', False): 1088, ('fr', True): 976,
    ('fr', False): 960, ('de', True): 1072, ('de', False): 1056,
}
PROCESSES_OF_THE_LARGEST = 4
NUM_ROUNDS = 2000
# Captions of Figures 15 and 16.
NOISE_BY_LAYER = dict(sigma=10e-6, clip=0.01, rounds=2000, cohort=1024)
