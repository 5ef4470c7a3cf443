# Names that are used where vulture does not look, by who uses them.
# ruff: noqa
# mypy: ignore-errors

# Prefect: a file system for results, and a task's storage
_.result_storage
_._resolve_path
_.aread_path
_.awrite_path

# Prefect copies a flow's task runner for each run, and writes its parameters; Dask asks a plugin of its workers
_.duplicate
_.serialize_parameters
idempotent

# Deployments name them in prefect.yaml
prune_store

# Templates of the pages
_.note
_.alarming
_.band
_.x_ticks
_.y_ticks
_.seconds_each
money
_.short_name

# Called in a process that can be killed, by module and name
step_alone
run_trial
processing

# Columns of ``flows.catalog``, read by their names
_.applies_to

# Code of benchmarks, which is given documents as the datasets library has them
_.shuffle
_.rename_column
_.add_column
_.to_dict

# Those who call the packages from Python: notebooks and benches
diagnose
clear_caches
_.n_pairs
_.n_shown

# Written to comparison.json by the names of the fields
_.correlation
_.n_clusters

# Fields that are sent or counted together, whatever they are: sampling parameters, faults of the embedded
# server, a completion's record, the tally of requests
_.max_completion_tokens
_.top_p
_.top_k
_.min_p
_.presence_penalty
_.frequency_penalty
_.repetition_penalty
_.logit_bias
_.top_logprobs
_.response_format
_.tool_choice
_.reasoning_effort
_.error_500
_.error_429
_.malformed
_.stall
_.response_id
_.wall_seconds

# numpy: an array's flags; a type in quotes
_.writeable
Estimator

# A user's metric reads them
_.char_lengths
_.byte_lengths
_.word_lengths
_.token_lengths
_.transcript
# Python's own hook
_.showwarning
_.output_kb  # read inside the sandbox
num_workers  # an argument of the library whose place code_eval takes
_.ll_tokens
_.tool_calls_json
_.audio  # a part of a message, read by its name


# Whoever prints: standard output's own methods
_.writelines

# Python's HTTP server calls and reads these of the server for Hugging Face folders
_.protocol_version
_.disable_nagle_algorithm
_.wbufsize
_.do_GET
_.do_POST
_.log_message
_.daemon_threads
_.request_queue_size

# Python's io asks files of our own: Arrow writes to one, and reads from the other
_.writable
_.seekable
_.readinto

# Users' metrics and scorers read these of what they are given
_.lls_mutual_info
_.char_len
_.byte_len
_.word_len
_.every_eval_ever  # names of entries of publish:, by getattr
_.mlflow
_.wandb
_.hub
_.otel

# OpenTelemetry's SDK asks for them
_.generate_trace_id
_.generate_span_id

# Answers are kept and read by the names of their fields
_.thoughts_json

# Limits of a task of Inspect, handed to it by their names
message_limit
token_limit
time_limit
working_limit

# The keys of a log of Inspect, whose types are checked
sample_ids
stop_reason
input_tokens
output_tokens
model_usage
total_time

# Prefect gives a pool of processes what they begin with, and starts them from threads of its own
_._initializer
_._initargs
_._resolver_executor

# urllib asks for it
_.redirect_request

# A template reads it of a compared pair
by_mean
