"""How a response is obtained: endpoints, recorded responses, the embedded server."""
