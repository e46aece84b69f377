"""Every option that gin can set has a test that shows what it changes.

The options are the arguments of all functions that an experiment configures or
uses, set there or left at their defaults. A new argument fails here until the
test of its effect is named; a test that goes fails here, too.
"""

import inspect
import re

from absl.testing import absltest

from tests import experiment_files

# What the programs in bin/ or other functions pass, not gin.
_NOT_OPTIONS = frozenset({
    'central.train.configuration',
    'central.train.output_dir',
    'cohorts.fixed_size.client_ids',
    'cohorts.fixed_size.key',
    'cohorts.poisson.client_ids',
    'cohorts.poisson.key',
    'federated.train.configuration',
    'federated.train.output_dir',
    'pretrain.train.configuration',
    'pretrain.train.output_dir',
    'subsampling.output_lengths.feature_lengths',
    'subsampling_2d.output_lengths.feature_lengths',
})

# By test file and test: the options whose effect it shows.
_SHOWN = {
    'tests/aggregators/dp_mean_test.py': {
        'test_clips_layers_by_the_query_s_split': ('dp_mean.build.query',),
        'test_divides_by_the_public_cohort_size_not_the_clients_that_came': (
            'dp_mean.build.cohort_size',
        ),
    },
    'tests/data/client_data_test.py': {
        'test_duration_is_the_cost_and_needs_no_shard': (
            'client_data.duration_cost.client_data',
        ),
        'test_every_client_has_its_utterances': ('client_data.load.path',),
        'test_selection': ('client_data.load.client_ids',),
    },
    'tests/data/cohorts_test.py': {
        'test_fixed_size_draws_each_subset_equally_often': (
            'cohorts.fixed_size.cohort_size',
        ),
        'test_poisson_inclusion_is_binomial': ('cohorts.poisson.cohort_size',),
    },
    'tests/data/packing_test.py': {
        'test_batches_are_greedy_within_both_bounds': (
            'pipeline.Pipeline.max_padding',
        ),
    },
    'tests/data/pipeline_test.py': {
        'test_masks_differ_by_epoch_and_utterance': (
            'pipeline.Pipeline.augment',
        ),
        'test_in_training': (
            'pipeline.Pipeline.max_utterance_sec',
            'pipeline.Pipeline.output_lengths',
        ),
        'test_padded_audio_is_bounded_and_little_of_it_is_padding': (
            'pipeline.Pipeline.max_batch_sec',
        ),
        'test_the_buffer_shuffles_and_the_chunk_sorts': (
            'pipeline.Pipeline.chunk_size',
            'pipeline.Pipeline.shuffle_buffer',
        ),
        'test_characters_that_are_not_tokens_raise': (
            'pipeline.Pipeline.tokenizer',
        ),
    },
    'tests/execution/multi_device_test.py': {
        'test_clients_of_different_devices_overlap': (
            'multi_device.build_async_context.devices',
        ),
        'test_clients_of_one_device_overlap_where_told_to': (
            'multi_device.build_async_context.clients_per_device',
        ),
        'test_costly_clients_start_first': (
            'multi_device.build_async_context.client_cost',
        ),
        'test_clients_that_fail_are_left_out_up_to_a_share': (
            'multi_device.build_async_context.max_failed_share',
        ),
        'test_a_client_that_hangs_ends_the_round': (
            'multi_device.build_async_context.client_timeout_sec',
        ),
    },
    'tests/execution/schedule_test.py': {
        'test_cohort_order_without_costs': (
            'multi_device.build_async_context.block_size',
        ),
    },
    'tests/features/spec_augment_test.py': {
        'test_each_option_changes_the_result': (
            'spec_augment.build.max_freq_width',
            'spec_augment.build.max_time_share',
            'spec_augment.build.max_time_width',
            'spec_augment.build.num_freq_masks',
            'spec_augment.build.num_time_masks',
        ),
    },
    'tests/learning/delta_transforms_test.py': {
        'test_clip_by_hand': ('delta_transforms.clip.max_norm',),
        'test_normalize_by_hand': ('delta_transforms.normalize.norm',),
    },
    'tests/learning/data_parallel_test.py': {
        'test_work_is_placed_on_every_device': ('central.train.devices',),
    },
    'tests/learning/client_update_test.py': {
        'test_lamb_steps_as_its_twin_and_starts_anew_at_each_client': (
            'fed_avg.build.build_client_optimizer',
        ),
        'test_deltas_are_weighed_by_what_a_client_trained_on': (
            'fed_avg.build.mean_weight',
            'fed_avg.build.weigh_by',
        ),
    },
    'tests/learning/fed_avg_test.py': {
        # None of the twin's settings is a default.
        'test_sgd_server_and_local_steps': (
            'fed_avg.build.client_learning_rate',
            'fed_avg.build.delta_transform',
            'fed_avg.build.max_grad_norm',
            'fed_avg.build.model',
            'fed_avg.build.num_local_steps',
            'fed_avg.build.pipeline',
            'fed_avg.build.proximal_weight',
            'fed_avg.build.seed',
            'fed_avg.build.server_optimizer',
        ),
        'test_frozen_layers_are_not_trained_clipped_noised_or_sent': (
            'fed_avg.build.frozen',
        ),
        'test_noise_needs_a_key_and_is_fixed_by_it': (
            'fed_avg.build.aggregator',
        ),
        'test_graph_does_not_grow_with_the_number_of_clients': (
            'fed_avg.build.client_data',
        ),
    },
    'tests/learning/poisson_rounds_test.py': {
        'test_equal_a_numpy_simulation': ('fed_avg.build.num_local_epochs',),
    },
    'tests/learning/dp_sgd_test.py': {
        'test_an_example_moves_the_sum_by_at_most_the_clip': (
            'pretrain.train.query',
        ),
        'test_packing_and_devices_do_not_change_the_sum': (
            'pretrain.train.devices',
        ),
        'test_vectorized_they_equal_a_loop_over_single_examples': (
            'pretrain.train.num_vectorized',
        ),
    },
    'tests/models/best_rq_test.py': {
        'test_any_encoder_of_as_many_frames_will_do': (
            'best_rq.build.encoder',
        ),
        'test_each_option_changes_the_loss': (
            'best_rq.build.noise_stddev',
            'best_rq.build.quantizer',
            'best_rq.build.span_sec',
            'best_rq.build.start_prob',
        ),
        'test_each_option_changes_the_labels': (
            'quantizer.Quantizer.code_dim',
            'quantizer.Quantizer.feature_dim',
            'quantizer.Quantizer.num_codes',
            'quantizer.Quantizer.num_stacked',
            'quantizer.Quantizer.seed',
        ),
    },
    'tests/models/conformer_test.py': {
        'test_each_option_changes_the_result': (
            'conformer.build.activation_dtype',
            'conformer.build.dim',
            'conformer.build.dropout',
            'conformer.build.feature_dim',
            'conformer.build.front_channels',
            'conformer.build.kernel_size',
            'conformer.build.mlp_dim',
            'conformer.build.num_blocks',
            'conformer.build.num_groups',
            'conformer.build.num_heads',
        ),
    },
    'tests/models/ctc_test.py': {
        'test_each_option_changes_the_model': (
            'ctc.build.encoder',
            'ctc.build.loss_kernel',
            'ctc.build.tokenizer',
        ),
    },
    'tests/models/transformer_test.py': {
        'test_each_option_changes_the_result': (
            'transformer.build.activation_dtype',
            'transformer.build.dim',
            'transformer.build.dropout',
            'transformer.build.feature_dim',
            'transformer.build.layer_drop',
            'transformer.build.max_shift_sec',
            'transformer.build.mlp_dim',
            'transformer.build.norm',
            'transformer.build.num_blocks',
            'transformer.build.num_heads',
            'transformer.build.position',
        ),
    },
    'tests/optimizers/adam_test.py': {
        'test_each_option_changes_the_result': (
            'adam.build_adam.beta_1',
            'adam.build_adam.beta_2',
            'adam.build_adam.epsilon',
            'adam.build_adam.learning_rate',
            'adam.build_adam.weight_decay',
        ),
    },
    'tests/optimizers/lamb_test.py': {
        'test_each_option_changes_the_result': (
            'lamb.build_lamb.beta_1',
            'lamb.build_lamb.beta_2',
            'lamb.build_lamb.epsilon',
            'lamb.build_lamb.learning_rate',
            'lamb.build_lamb.weight_decay',
        ),
    },
    'tests/optimizers/lars_test.py': {
        'test_each_option_changes_the_result': (
            'lars.build_lars.epsilon',
            'lars.build_lars.learning_rate',
            'lars.build_lars.momentum',
            'lars.build_lars.trust_coefficient',
            'lars.build_lars.weight_decay',
        ),
    },
    'tests/optimizers/schedules_test.py': {
        'test_exponential_decay_at_corner_points': (
            'schedules.exponential_decay.decay_rate',
            'schedules.exponential_decay.learning_rate',
            'schedules.exponential_decay.start',
            'schedules.exponential_decay.transition_rounds',
        ),
        'test_exponential_decay_stays_above_its_floor': (
            'schedules.exponential_decay.floor',
        ),
        'test_scheduled_lamb_equals_lamb_with_each_rate': (
            'schedules.scheduled.optimizer',
            'schedules.scheduled.schedule',
        ),
        'test_warmup_at_corner_points': ('schedules.warmup.rounds',),
        'test_warmup_multiplies_the_schedule_inside': (
            'schedules.warmup.schedule',
        ),
    },
    'tests/privacy/queries_noise_test.py': {
        'test_noise_is_gaussian_of_z_times_c_in_every_layer': (
            'queries.PerLayerClipSumQuery.noise_multiplier',
        ),
    },
    'tests/privacy/queries_test.py': {
        'test_clipped_norms_are_at_most_the_clip': (
            'clips.Clipping.split',
            'queries.PerLayerClipSumQuery.clipping',
            'queries.PerLayerClipSumQuery.l2_norm_clip',
        ),
        'test_modules_share_their_norm_by_hand': ('clips.Clipping.layers',),
        'test_rescaling_by_hand': ('clips.Clipping.rule',),
        'test_weights_by_hand': ('clips.Clipping.weights',),
    },
    'tests/programs/central_test.py': {
        'test_the_encoder_waits_and_then_steps_at_its_rate': (
            'central.train.encoder_frozen_steps',
            'central.train.encoder_rate',
        ),
        'test_seed_and_gradient_clip_reach_the_training': (
            'central.train.max_grad_norm',
            'central.train.seed',
        ),
        'test_keeps_states_as_told': (
            'central.train.keep_every',
            'central.train.keep_last',
        ),
        'test_speakers_without_utterances_are_an_error': (
            'central.train.client_data',
        ),
        'test_stops_early_keeps_the_best_and_resumes_exactly': (
            'central.train.evaluator',
            'central.train.model',
            'central.train.num_steps',
            'central.train.patience',
            'central.train.pipeline',
        ),
        'test_without_patience_keeps_the_last_weights_and_seeds_other_runs': (
            'central.train.evaluate_every',
            'central.train.optimizer',
            'central.train.init_from_run',
        ),
    },
    'tests/programs/evaluation_test.py': {
        'test_decodes_every_utterance_in_order_and_counts_its_errors': (
            'evaluation.Evaluator.client_data',
            'evaluation.Evaluator.model',
            'evaluation.Evaluator.pipeline',
        ),
        'test_writes_the_figures_of_each_run': (
            'evaluate.evaluate.client_data',
            'evaluate.evaluate.model',
            'evaluate.evaluate.output_name',
            'evaluate.evaluate.pipeline',
            'evaluate.evaluate.runs',
        ),
    },
    'tests/programs/audit_test.py': {
        'test_finds_about_what_is_accounted_when_all_join': (
            'fed_avg.build.canaries',
        ),
    },
    'tests/programs/federated_test.py': {
        'test_a_fixed_seed_makes_every_output_say_not_private': (
            'federated.train.noise_seed',
            'federated.train.sampler_seed',
        ),
        'test_a_round_is_charged_before_its_model_is_seen_or_saved': (
            'federated.train.evaluate_every',
            'federated.train.evaluator',
            'federated.train.save_every',
        ),
        'test_a_target_epsilon_ends_the_run_before_it_is_exceeded': (
            'federated.train.target_epsilon',
        ),
        'test_a_stopped_run_ends_in_the_bits_of_a_whole_one': (
            'federated.train.context',
            'federated.train.num_rounds',
        ),
        'test_characters_that_are_not_tokens_are_named': (
            'federated.train.client_data',
            'federated.train.pipeline',
        ),
        'test_an_undone_round_stays_charged_and_has_a_successor': (
            'federated.train.on_divergence',
        ),
        'test_growth_of_the_norms_ends_the_run': (
            'federated.train.max_norm_growth',
        ),
        'test_keeps_states_as_told': (
            'federated.train.keep_every',
            'federated.train.keep_last',
        ),
        'test_non_finite_updates_above_the_share_end_the_run': (
            'federated.train.max_failed_share',
        ),
        'test_rounds_of_nobody_work': ('federated.train.build_cohorts',),
        'test_seed_runs_that_do_not_fit_are_refused': (
            'federated.train.model',
        ),
        'test_starts_from_the_seed_run': (
            'federated.train.learning_process',
            'federated.train.init_from_run',
        ),
        'test_writes_everything_and_states_the_privacy': (
            'federated.train.delta',
        ),
    },
    'tests/programs/layer_scores_test.py': {
        'test_the_encoder_s_layers_are_chosen_by_its_scores': (
            'layer_scores.frozen.freeze',
            'layer_scores.frozen.model',
            'layer_scores.frozen.run',
        ),
    },
    'tests/programs/pretraining_test.py': {
        'test_keeps_states_as_told': (
            'pretrain.train.keep_every',
            'pretrain.train.keep_last',
        ),
        'test_a_public_run_scores_layers_and_charges_nothing': (
            'masked_evaluation.MaskedEvaluator.client_data',
            'masked_evaluation.MaskedEvaluator.model',
            'masked_evaluation.MaskedEvaluator.pipeline',
            'pretrain.train.evaluate_every',
            'pretrain.train.evaluator',
            'pretrain.train.model',
            'pretrain.train.optimizer',
        ),
        'test_a_stopped_private_run_ends_in_the_bits_of_a_whole_one': (
            'pretrain.train.batch_size',
            'pretrain.train.client_data',
            'pretrain.train.noise_seed',
            'pretrain.train.num_steps',
            'pretrain.train.sampler_seed',
            'pretrain.train.save_every',
            'pretrain.train.seed',
        ),
        'test_a_target_epsilon_ends_the_run_before_it_is_exceeded': (
            'pretrain.train.delta',
            'pretrain.train.target_epsilon',
        ),
        'test_choices_by_hand': (
            'layer_freeze.LayerFreeze.number',
            'layer_freeze.LayerFreeze.order',
            'layer_freeze.LayerFreeze.seed',
            'layer_freeze.LayerFreeze.share',
        ),
        'test_frozen_layers_are_those_of_the_lowest_scores_and_do_not_move': (
            'pretrain.train.freeze',
            'pretrain.train.init_from_run',
        ),
        'test_too_long_ones_add_nothing': ('pretrain.train.pipeline',),
    },
    'tests/text/tokenizer_test.py': {
        'test_each_language_has_its_characters': (
            'tokenizer.for_language.language',
        ),
    },
}


def _options() -> set[str]:
  """'module.function.argument' of all that the experiments configure."""
  options = set()
  for path in experiment_files.paths():
    golden = f'tests/golden/experiments/{experiment_files.name(path)}.gin'
    functions = experiment_files.configured(experiment_files.read(golden))
    for selector, function in functions.items():
      for argument in inspect.signature(function).parameters:
        options.add(f'{selector}.{argument}')
  return options - _NOT_OPTIONS


class OptionsTest(absltest.TestCase):

  def test_every_option_names_the_test_of_its_effect(self):
    shown = [
        option
        for tests in _SHOWN.values()
        for options in tests.values()
        for option in options
    ]
    self.assertLen(set(shown), len(shown))
    self.assertEqual(set(shown), _options())

  def test_the_tests_exist(self):
    for path, tests in _SHOWN.items():
      text = experiment_files.read(path)
      for test in tests:
        self.assertTrue(
            re.search(rf'^  def {test}\(', text, re.MULTILINE),
            f'{path} has no {test}',
        )


if __name__ == '__main__':
  absltest.main()
