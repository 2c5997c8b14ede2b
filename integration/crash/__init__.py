"""Breaking a stream on purpose, and judging what its sink then holds.

proxy.py         a network that can be cut, refused, held, slowed and mended
killing.py       ends a process at a named step, without a hook in the code that is tested
site/            what makes every Python process of a Spark application load `killing`
sink.py          a sink that is transactional by batch id and keeps every row it ever got
oracle.py        what must be true of such a sink, and of the slot, at any time and at the end
driver.py        a driver like Spark's, in a process of its own: offset log, commit log, readers; quick to start
spark_driver.py  a real Spark with the same sink, in a process of its own
lives.py         one stream over the lives and deaths of its drivers
spark_lives.py   the same for whole Sparks
cluster.py       a Spark cluster of two hosts on one machine
weather.py       a stream whose way to the database leads through a `Proxy`
load.py          clients that write on while their server is killed
"""

from __future__ import annotations
