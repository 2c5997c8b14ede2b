"""The state directory: what is in it, who may use it, and the rules when it and the checkpoint disagree.

record          what the directory says of a stream, and these rules
views           what can be read of it while the stream runs
kept_options    the options that a stream keeps to its end
same_table      whether the table is still the one that the stream began with
recorded        what the state store keeps of a stream, in its types
files           what lies in it, by name, and removing that
control_file    how another process tells the stream what to do
counts_file     what the stream has counted, for other processes
claim           one query at a time uses the directory
file_lock       a lock that ends with its process
failures        what goes wrong with its files, as our errors

Each imports only what stands after it.
"""

from __future__ import annotations
