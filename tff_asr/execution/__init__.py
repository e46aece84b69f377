"""Runs TFF computations: on this machine's devices, on Ray, or natively.

    process.next(state, clients)
      |
    context.Runner           one for each context: multi_device, ray_runner
      |  compiler            the computation as TensorFlow programs
      |    graph.Program     each of them; a LoadedProgram in a process
      |
    client_round.ClientRound   one call: its clients, their errors, the stop
      |  scheduler.Scheduler   assigns client groups to workers
      |
      +-- this process                     +-- Ray workers, in other processes
      |   one thread for each of:          |   ray_runner.Actor: the handle
      |                                    |   ray_worker.RayWorker: the actor
      |                                    |
    client_trainer.ClientTrainer         client_trainer.ClientTrainer
      |   trains clients on a process's devices into one sum
      |                                    |
    reduction.sum_over_devices           ray_sums.add

`native` is TFF's own C++ runtime, which shares none of this.
"""
