"""Settings: what the environment may say, and what becomes of the token."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.settings import (
    Settings,
    SettingsError,
    announce,
    find_service,
    load_token,
    read_settings,
    withdraw,
)

TOKEN = "a-token-of-enough-letters"


def test_the_default_binds_to_loopback_only() -> None:
    assert read_settings({}).host == "127.0.0.1"


def test_empty_and_foreign_variables_count_as_not_given() -> None:
    assert read_settings({"SHARDYARD_PORT": "", "SHARDYARD_LAUNCH_REQUEST": "x", "PORT": "1"}) == Settings()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "yard.example.org"])
def test_a_bind_that_others_reach_is_refused_without_a_token(host: str) -> None:
    with pytest.raises(SettingsError, match="SHARDYARD_TOKEN_FILE"):
        read_settings({"SHARDYARD_HOST": host})
    environ = {
        "SHARDYARD_HOST": host,
        "SHARDYARD_TOKEN": TOKEN,
        "SHARDYARD_ADVERTISE_URL": "http://yard:8321",
    }
    assert read_settings(environ).host == host


def test_a_bind_to_all_addresses_says_which_one_nodes_shall_call() -> None:
    with pytest.raises(SettingsError, match="SHARDYARD_ADVERTISE_URL"):
        read_settings({"SHARDYARD_HOST": "0.0.0.0", "SHARDYARD_TOKEN": TOKEN})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.3", "::1", "localhost"])
def test_a_loopback_bind_needs_no_configured_token(host: str) -> None:
    assert read_settings({"SHARDYARD_HOST": host}).host == host


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHARDYARD_PORT", "70000"),
        ("SHARDYARD_PORT", "http"),
        ("SHARDYARD_LEASE_SECONDS", "0"),
        ("SHARDYARD_LEASE_SECONDS", "nan"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: '{value}'"):
        read_settings({name: value})


def test_several_values_are_separated_by_commas() -> None:
    settings = read_settings(
        {"SHARDYARD_ALLOWED_HOSTS": "yard, yard.example.org,", "SHARDYARD_ALLOWED_ROOTS": "/data,/mnt/fast"}
    )
    assert settings.allowed_hosts == ("yard", "yard.example.org")
    assert settings.allowed_roots == ("/data", "/mnt/fast")


def test_a_ray_address_that_is_no_http_address_is_refused() -> None:
    with pytest.raises(SettingsError, match="ray_address 'ray://head:10001'"):
        read_settings({"SHARDYARD_RAY_ADDRESS": "ray://head:10001"})


def test_several_starters_at_once_agree_on_one_private_token(tmp_path: Path) -> None:
    settings = read_settings({"SHARDYARD_HOME": str(tmp_path / "home")})
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: load_token(settings), range(32)))
    assert len(tokens) == 1
    assert stat.S_IMODE((tmp_path / "home" / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["token"]


def test_a_token_file_of_the_state_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    settings = read_settings({"SHARDYARD_HOME": str(tmp_path)})
    load_token(settings)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_token(settings)


def test_a_configured_token_file_is_read_and_never_made(tmp_path: Path) -> None:
    settings = read_settings({"SHARDYARD_TOKEN_FILE": str(tmp_path / "secret")})
    with pytest.raises(SettingsError, match="cannot be read"):
        load_token(settings)
    assert not (tmp_path / "secret").exists()
    (tmp_path / "secret").write_text(TOKEN + "\n")
    assert load_token(settings) == TOKEN


@pytest.mark.parametrize("token", ["short", "with a space in it, long enough", "nöt-ascii-but-long-enough"])
def test_a_token_that_cannot_protect_or_travel_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="16 or more printable"):
        load_token(read_settings({"SHARDYARD_TOKEN": token}))


def test_a_client_finds_the_announced_service_until_it_is_withdrawn(tmp_path: Path) -> None:
    environ = {"SHARDYARD_HOME": str(tmp_path)}
    settings = read_settings(environ)
    assert find_service(environ) is None
    assert not (tmp_path / "token").exists()

    token = load_token(settings)
    announce(settings, url="http://127.0.0.1:4711", pid=17)
    found = find_service(environ)
    assert found is not None
    assert (found.url, found.token) == ("http://127.0.0.1:4711", token)

    withdraw(settings, pid=18)
    assert find_service(environ) is not None, "another service's announcement was taken away"
    withdraw(settings, pid=17)
    assert find_service(environ) is None


def test_a_client_that_names_a_url_needs_no_state_directory(tmp_path: Path) -> None:
    environ = {
        "SHARDYARD_HOME": str(tmp_path / "none"),
        "SHARDYARD_URL": "https://yard.example.org/",
        "SHARDYARD_TOKEN": TOKEN,
    }
    found = find_service(environ)
    assert found is not None
    assert (found.url, found.token) == ("https://yard.example.org", TOKEN)
