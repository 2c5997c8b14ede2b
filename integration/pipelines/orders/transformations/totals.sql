CREATE MATERIALIZED VIEW changes_by_kind AS
SELECT _change_type, count(*) AS changes FROM orders_log GROUP BY _change_type;

-- A table that was made with CREATE TABLE orders_feed USING backfill OPTIONS (…).
CREATE STREAMING TABLE orders_from_table AS SELECT id, _change_type FROM STREAM orders_feed;
