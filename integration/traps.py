"""A schema of operators and functions that anybody could make, and that a statement must not reach by accident.

PostgreSQL prefers an operator for exactly the types that it is given, wherever it is, to one of pg_catalog for which
they would have to be converted, or that is for any type. So whoever may create in a schema of the `search_path` can
have his own run in place of `oid = 7` or `array || array`. The schema has all such operators and functions, and each
raises an error.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "traps"

_TYPES: Final = (
    *("name", "text", "int2", "int4", "int8", "oid", "regclass", "float4", "float8", "numeric", "jsonb", "timestamptz"),
    *("int2vector", "int2[]", "oid[]", "text[]", "numeric[]"),
)
_OPERATORS: Final = (
    *("=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||"),
    *("<@", "@>", "&&", "~", "~~", "->", "->>"),
)
SET: Final = f"""
    CREATE SCHEMA {SCHEMA};
    GRANT USAGE ON SCHEMA {SCHEMA} TO PUBLIC;
    DO $set$
    DECLARE one text; other text; operator text;
    BEGIN
        FOREACH one IN ARRAY ARRAY[{", ".join(f"'{name}'" for name in _TYPES)}] LOOP
            FOR operator IN
                SELECT DISTINCT p.proname FROM pg_proc p JOIN pg_type t ON t.oid = p.proargtypes[0]
                WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.pronargs = 1 AND t.typtype = 'p'
                  AND p.prokind IN ('f', 'a') AND t.typname IN ('any', 'anyelement', 'anyarray', 'anynonarray')
            LOOP
                EXECUTE format('CREATE FUNCTION {SCHEMA}.%I(%s) RETURNS bool LANGUAGE plpgsql AS '
                               '$$BEGIN RAISE USING MESSAGE = %L; END$$',
                               operator, one, format('trapped: %s(%s)', operator, one));
            END LOOP;
            FOREACH other IN ARRAY ARRAY[{", ".join(f"'{name}'" for name in _TYPES)}] LOOP
                EXECUTE format('CREATE FUNCTION {SCHEMA}.trap(%s, %s) RETURNS bool LANGUAGE plpgsql AS '
                               '$$BEGIN RAISE USING MESSAGE = %L; END$$',
                               one, other, format('trapped: %s with %s', one, other));
                FOREACH operator IN ARRAY ARRAY[{", ".join(f"'{name}'" for name in _OPERATORS)}] LOOP
                    CONTINUE WHEN EXISTS (
                        SELECT FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace
                        AND oprname = operator AND oprleft = one::regtype AND oprright = other::regtype);
                    EXECUTE format('CREATE OPERATOR {SCHEMA}.%s '
                                   '(LEFTARG = %s, RIGHTARG = %s, FUNCTION = {SCHEMA}.trap)', operator, one, other);
                END LOOP;
            END LOOP;
        END LOOP;
    END $set$
"""
