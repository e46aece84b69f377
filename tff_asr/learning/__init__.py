"""Learning processes: what one round or step does.

    fed_avg        a federated round: `client_update` at the clients, an
                   aggregator (`aggregators`), `server_update` at the server
    central_step   a step without privacy, on batches of all speakers
    dp_sgd         a private step, on examples of all speakers (pre-training)

All have the interface of `process`; `programs` runs them.
"""
