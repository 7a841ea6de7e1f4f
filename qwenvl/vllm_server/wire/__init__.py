"""The messages between trainer and server: what they hold, how they are checked, and their bytes.

Both sides make and read messages by these files, so that they cannot differ. Paths of the server, and what is sent:

    GET  /health    -> Health (JSON)
    POST /sample    SampleRequest -> SampleAnswer
    POST /weights   WeightsRequest -> WeightsAnswer (JSON)
    POST /link      LinkRequest -> Health (JSON), for weights that come from device to device
    POST /sleep     -> Health (JSON), for a server that shares the trainer's GPU
    POST /wake      -> Health (JSON)

An answer other than 200 is JSON ``{"kind": ..., "error": ...}``, which `Refusal.of_answer` reads.
"""
