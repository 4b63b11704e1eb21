"""Where a value comes from, what is refused, what is raised, and that no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep.errors import SettingsError
from instep.settings import MASK, Settings, masked, variables


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def source(settings: Settings, name: str) -> str:
    return next(line.source for line in settings.explained() if line.name == name)


def test_flags_before_environment_before_file_before_default(elsewhere: Path) -> None:
    (elsewhere / "instep.toml").write_text("batch_size = 4\npool_size = 4\nmax_attempts = 4\n")
    settings = Settings.load(
        flags={"batch_size": 2, "pool_size": None},
        environ={"INSTEP_BATCH_SIZE": "3", "INSTEP_POOL_SIZE": "3"},
    )
    assert (settings.batch_size, settings.pool_size, settings.max_attempts) == (2, 3, 4)
    assert (settings.embed_concurrency, settings.embed_provider) == (8, "minilm")
    assert source(settings, "batch_size") == "flag"
    assert source(settings, "pool_size") == "environment INSTEP_POOL_SIZE"
    assert source(settings, "max_attempts") == "file instep.toml"
    assert source(settings, "embed_concurrency") == "default"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DATABASE_URL", "postgresql:///a", "database_url", "postgresql:///a"),
        ("PG_DSN", "postgresql:///a", "database_url", "postgresql:///a"),
        ("EMBED_URL", "http://m:80", "embed_url", "http://m:80"),
        ("EMBED_BATCH_SIZE", "16", "embed_batch_size", 16),
        ("EMBED_CONCURRENCY", "2", "embed_concurrency", 2),
        ("EMBED_PROVIDER", "TEI", "embed_provider", "tei"),
        ("INSTEP_EMBED_PROVIDER", "ollama", "embed_provider", "ollama"),
        ("INSTEP_POOLER", "true", "pooler", True),
        ("INSTEP_SWEEP_EVERY_SECONDS", "1.5", "sweep_every_seconds", 1.5),
        ("INSTEP_DATA_DIR", "~/x", "data_dir", Path.home() / "x"),
    ],
)
def test_names_that_are_accepted(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(Settings.load(environ={variable: text}), name) == value


def test_our_own_name_wins_over_another() -> None:
    found = Settings.load(
        environ={"INSTEP_DATABASE_URL": "postgresql:///ours", "DATABASE_URL": "postgresql:///b"}
    )
    assert found.database_url == "postgresql:///ours"


def test_an_empty_value_is_no_value() -> None:
    settings = Settings.load(environ={"DATABASE_URL": "", "INSTEP_BATCH_SIZE": " ", "EMBED_URL": ""})
    assert (settings.database_url, settings.batch_size, settings.embed_url) == (None, 500, None)


def test_a_file_elsewhere_and_paths_relative_to_it(elsewhere: Path) -> None:
    (elsewhere / "sub").mkdir()
    (elsewhere / "sub" / "my.toml").write_text('data_dir = "data"\nlog_level = "error"\n')
    settings = Settings.load(environ={"INSTEP_CONFIG": "sub/my.toml"})
    assert settings.data_dir == elsewhere / "sub" / "data"
    assert settings.models_path == elsewhere / "sub" / "data" / "models"
    assert settings.log_level == "error"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"INSTEP_LEASE_SECONDS": "inf"}, "INSTEP_LEASE_SECONDS is 'inf': it takes seconds, more than 0"),
        (
            {"INSTEP_CALL_TIMEOUT_SECONDS": "nan"},
            "INSTEP_CALL_TIMEOUT_SECONDS is 'nan': it takes seconds; 0: no limit",
        ),
        ({"INSTEP_BATCH_SIZE": "many"}, "INSTEP_BATCH_SIZE is 'many': it takes a whole number, at least 1"),
        ({"EMBED_CONCURRENCY": "0"}, "EMBED_CONCURRENCY is '0': it takes a whole number, at least 1"),
        ({"INSTEP_LEASE_SECONDS": "-1"}, "INSTEP_LEASE_SECONDS is '-1': it takes seconds, more than 0"),
        ({"EMBED_PROVIDER": "gpt"}, "EMBED_PROVIDER is 'gpt': it takes minilm, tei, openai or ollama"),
        ({"INSTEP_YES": "perhaps"}, "INSTEP_YES is 'perhaps': it takes true or false"),
        ({"INSTEP_CONFIG": "nowhere.toml"}, "INSTEP_CONFIG is nowhere.toml: there is no such file"),
    ],
)
def test_an_error_names_the_variable_what_it_got_and_what_it_takes(
    environ: dict[str, str], says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.load(environ=environ)
    assert str(refused.value) == says


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"--pool-size is 1.*INSTEP_MAX_ATTEMPTS is 'x'"):
        Settings.load(flags={"pool_size": 1}, environ={"INSTEP_MAX_ATTEMPTS": "x"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bach_size = 3", r"has bach_size, which is no setting: did you mean batch_size\?"),
        ("batch_size = ", "cannot be read as TOML"),
        ('batch_size = "x"', "batch_size in instep.toml is 'x'"),
        ("[batch_size]\na = 1", "batch_size in instep.toml is"),
    ],
)
def test_a_file_that_is_wrong_is_refused(elsewhere: Path, text: str, says: str) -> None:
    (elsewhere / "instep.toml").write_text(text)
    with pytest.raises(SettingsError, match=says):
        Settings.load(environ={})


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(SettingsError, match="no setting batchsize: did you mean batch_size"):
        Settings.load(flags={"batchsize": 1}, environ={})


def test_an_unknown_variable_is_warned_of_with_the_nearest_name() -> None:
    settings = Settings.load(environ={"INSTEP_BACH_SIZE": "3", "INSTEP_TEST_DSN": "x", "OTHER": "y"})
    assert settings.warnings == (
        "INSTEP_BACH_SIZE is set, but no setting has that name: did you mean INSTEP_BATCH_SIZE?",
    )


@pytest.mark.parametrize("given", ["0", "-7"])
def test_a_batch_is_at_least_one_and_says_why(given: str) -> None:
    settings = Settings.load(environ={"INSTEP_BATCH_SIZE": given})
    assert settings.batch_size == 1
    assert source(settings, "batch_size") == "raised"
    (warning,) = settings.warnings
    assert warning.startswith(f"INSTEP_BATCH_SIZE is {given}: 1 is used, because")


def test_a_lease_is_at_least_the_waves_budget_and_says_why() -> None:
    settings = Settings.load(environ={"INSTEP_LEASE_SECONDS": "5", "INSTEP_CALL_TIMEOUT_SECONDS": "1200"})
    assert settings.lease_seconds == 1200
    (warning,) = settings.warnings
    assert "INSTEP_LEASE_SECONDS is 5: 1200 is used, because" in warning
    assert "INSTEP_CALL_TIMEOUT_SECONDS" in warning
    assert (
        Settings.load(environ={"INSTEP_LEASE_SECONDS": "5", "INSTEP_CALL_TIMEOUT_SECONDS": "0"}).warnings
        == ()
    )


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.load(environ={}).batch_size = 3  # type: ignore[misc]


def test_no_secret_is_shown_anywhere(elsewhere: Path) -> None:
    secret = "s3cr3t"
    settings = Settings.load(
        environ={
            "DATABASE_URL": f"postgresql://me:{secret}@h/d",
            "INSTEP_DIRECT_DATABASE_URL": f"host=h password={secret}",
            "EMBED_API_KEY": secret,
            "EMBED_URL": f"http://me:{secret}@host:80",
        }
    )
    assert settings.embed_api_key is not None
    assert settings.embed_api_key.get_secret_value() == secret
    assert secret not in "".join(line.value for line in settings.explained())
    assert secret not in repr(settings.model_copy(update={"embed_url": None}))
    with pytest.raises(SettingsError) as refused:
        Settings.load(flags={"database_url": 7, "embed_api_key": [secret]}, environ={})
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h:5432/d", f"postgresql://u:{MASK}@h:5432/d"),
        ("postgresql://u:p@ss/w:rd@h/d", f"postgresql://u:{MASK}@h/d"),
        ("postgresql://u@h/d?sslpassword=x&a=b", f"postgresql://u@h/d?sslpassword={MASK}&a=b"),
        (r"host=h password='it\'s x' user=u", f"host=h password={MASK} user=u"),
        ("host=h password = x user=u", f"host=h password = {MASK} user=u"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("http://localhost:8080/embed", "http://localhost:8080/embed"),
    ],
)
def test_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_every_setting_says_what_it_is_and_takes() -> None:
    for line in Settings.load(environ={}).explained():
        assert line.description, line.name
        assert line.takes, line.name
        assert line.variable == variables(line.name)[0] == "INSTEP_" + line.name.upper()
