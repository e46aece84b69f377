"""Programs: training runs, evaluation, audits.

    training_loop    resumes, runs rounds, charges, evaluates, saves
      federated        training runs: what a round takes as its data, its step
      central          and its metrics
      pretraining
    private_rounds   the round's noise key, and its charge in the ledger
    run_state        what a run saves and resumes from
    evaluation       word error rates of trained models
"""
