"""All of a living table, then every change to it, as one Spark stream: the algorithm on one page.

A table `t(id, v)` with four rows is back-filled while somebody writes to it. Each batch reads two rows of the table.

    time   writer                          batch   emits                                     the sink then holds
    ----   -----------------------------   -----   ---------------------------------------   ------------------------
     E1    t = {1:a, 2:b, 3:c, 4:d}          1     +1:a +2:b                    (read at E1)   {1:a, 2:b}
           update 2 to B; update 4 to D
           delete 1; move 3 to 0
     E2    t = {0:c, 2:B, 4:D}               2     ~2:B  -1  +0:c               (the log)
                                                   +4:D                         (read at E2)   {0:c, 2:B, 4:D} = t
           insert 9:i
     E3    t = {0:c, 2:B, 4:D, 9:i}          3     +9:i                         (the log)      t

A batch takes the sink from an *epoch* `E` (a consistent state of the upstream) and a position `pos` (the key of the
last row read) to a later epoch `E'` and a position `pos'`, which is `pos` or a later one. It emits

1. the changes that lead from the table at `E` to the table at `E'`, as far as they concern keys `<= pos`; then
2. the rows with `pos < key <= pos'`, read *exactly as of* `E'`.

The first batch has no `pos` yet and emits rows alone. After each batch, the sink holds exactly the rows with `key <=
pos'` as they were at `E'`. Batch 2 leaves out the update of row 4, because row 4 had not been emitted: read at E2, it
shows D already. Moving 3 to 0 is a delete of 3, which the sink never had, and an insert of 0, which lies before the
position. Had row 4 been read at any other moment than E2, its update would be lost or come twice; hence readers are
pinned to a state. Batch 2 also finds that no row follows 4. Then the whole key space counts as read, and every change
goes forward, as the insert of 9 does in batch 3.

Refinements, in the order in which one meets them in the code:

- **Many positions.** The key space is cut into *vnodes*, slices of the key's range, and each has a position of its own
  (`progress`: NotStarted, InProgress, Completed). Several readers work at once, and their number may differ in every
  batch, because no state depends on it. A Completed vnode passes on every change, whatever its last position was.
- **Marking** (`mark`, `following`). A change goes forward if its key lies in the part of the table already emitted. The
  two halves of an update that moves its key are marked separately, each by its own key.
- **Planning** (`plan`). How far each vnode goes is measured at E' before anything is read. So the offset that Spark
  logs says exactly what the batch contains, and the same offsets give the same rows again.
- **A backlog comes first** (`stream`, `advance`). Where the log holds more changes than a batch may take, batches of
  changes alone precede the next one that reads rows. Within a process each may take twice as many as the one before,
  up to a bound: otherwise a busy writer would hold up the snapshot for ever.
- **Chunks are staged** (`staging`, `chunks`). PostgreSQL cannot go back to E' after a crash. So each reader writes its
  rows to a file, its *chunk*, which is complete before the last of them is passed on; a batch that is run again reads
  them from there. If a chunk was not staged, nobody has read it to its end. When its batch is run again, the chunk is
  read at a later state (Delta Lake still has E'), and the batches after it, up to the first that ends at that state or
  after it, leave out the changes to its keys which that state shows (`offset.Ahead`). If its batch was committed all
  the same, the sink did not ask for all of its rows.
- **Whole rows** (`whole_rows`). The log leaves out the row before an update, and large values that did not change.
  Where they are asked for, they come from the last row of each key, kept in an upsert state that follows the output;
  a row of which a value has not been seen yet is looked up in the table.
- **Order** (`rows`). `_sequence` is the epoch's number, then the row's place in the batch, so it grows strictly for
  each key.
- **Taking rows again** (`again`). A person may ask for rows once more. Marking goes on as before, and a second frontier
  says how far these rows have been read. They are read exactly as of E' and come after the batch's changes, as inserts
  of keys that are present, which supersede what was there. Such a chunk is never read later than planned: if E' is gone
  after a crash, the chunk is left out, and its keys are taken in a later batch. So the sink is right at each barrier.
- **Epochs without a pin** (`upstream`). A batch that reads no rows ends at an epoch to which no reader is pinned. Once
  the backfill is over, such an epoch may show commits that readers do not see yet; rows are read again only at a state
  that shows all of them. While a person holds the snapshot (`control`) it may not, since the snapshot goes on from it.
- **Acknowledging** (`attachment`). The offset from which Spark asks for the next batch has been committed. Only then is
  progress recorded, and only then may the upstream forget the log before it.

Words, beside those above:

    barrier     the end of a batch: its epoch and the progress of every vnode (`offset.Barrier`)
    frontier    the progress of all vnodes at a barrier
    pin         a state at which readers can read until it is released
    piece       the rows of one vnode that a batch reads; or of adjacent vnodes, if it reads all that they have
    split       the pieces that one reader reads
    chunk       the staged file of a split
    manifest    a batch's splits, and which of them were read at a later state or given up
    part        what one of Spark's tasks gets: changes, or the rows of a split
    position    of a vnode, the key of the last row read; of an epoch, the upstream's own text of what that state shows
    cursor      what the next batch moves: the stream's frontier, or that of the rows that are taken again
    place       where a stream is in the change log: in PostgreSQL, a slot and a publication
    bookmark    what an adapter needs to find the stream's place in the change log, and options that the stream keeps

Where things are; each module may import only those that stand after it:

    pyspark_backfill            what Spark finds
    backfill.spark              Spark's calls and types; the only package that imports pyspark
    backfill.__main__           the command
    backfill.sinks              keyed targets that follow a stream, for foreachBatch
    backfill.command            what the command shows of a stream, and asks of it
    backfill.reported           where a running query says that it is
    backfill.metrics            figures as Prometheus reads them
    backfill.opening, adapters  from options to a stream; to the upstream that they name
    backfill.stream             from an offset to the next, and from two offsets to what is read
    backfill.scan, span         batch reads: the table as it is now; the changes between two positions
    backfill.attachment         a stream's ties: state directory, place in the change log, staged chunks
    backfill.following, chunks  the readers' parts of one batch: its changes; its snapshot rows
    backfill.advance, release   how much a batch takes; letting go of the state it read at
    backfill.again              from what a person asked for to a second frontier
    backfill.whole_rows         changes in full, from the last row of each key
    backfill.state_dir          the state directory and its rules
    backfill.packing            how changes travel to a reader: inline or in files
    backfill.handoff            what travels to a reader, and how it becomes rows
    backfill.staging, rows      chunks on disk, and who reads which; the output columns
    backfill.upstream           the contract of a database, and one folder for each
    backfill.plan, mark         the decisions, pure
    backfill.offset             what the checkpoint holds
    backfill.control, counts    what a person has told the stream; what became of its changes
    backfill.progress, epoch    how far a stream is; the states batches end at
    backfill.stored             reading what was stored as JSON
    backfill.options            what the user asks for, validated
    backfill.vnode, changes     ranges of keys; the layout of an upstream's changes
    backfill.readahead          making the next item while this one is used
    backfill.amounts, wording   figures as people read them; sentences that errors share
    backfill.scarcity, durable  too little memory, threads or files; what survives a loss of power
    backfill.arrow              Arrow's arrays, batches and types, whatever they hold
    backfill.errors             every error a user can meet

The algorithm is that of RisingWave's backfill executors, with time travel replaced by pinned snapshots and staged
chunks.
"""

from __future__ import annotations
