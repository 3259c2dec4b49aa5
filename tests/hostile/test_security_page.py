"""SECURITY.md: each promise has tests, which are named here; a new one needs its own."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()

PROMISES = {
    "Requests have limits": [
        "hostile/test_requests.py::test_a_body_is_refused_before_much_is_made_of_it",
        "hostile/test_requests.py::test_a_text_that_no_context_holds_is_not_decoded",
        "hostile/test_permissions.py::test_an_upload_that_is_too_large",
        "hostile/test_model_files.py::test_a_gguf_is_refused_before_anything_is_made_of_it",
        "hostile/test_model_files.py::test_weights_are_refused",
        "net/relay/test_rogue_engine.py::test_a_whole_answer_has_a_limit",
    ],
    "Requests are read strictly": [
        "hostile/test_http_forms.py::test_form",
        "hostile/test_http_forms.py::test_refusals_are_counted_and_some_are_logged",
        "net/relay/test_rogue_engine.py::test_what_is_no_part_of_an_answer_has_a_limit",
    ],
    "A server without keys serves one list of routes": [
        "hostile/test_open_server.py::test_each_route_stands_in_one_list",
        "hostile/test_open_server.py::test_what_an_open_server_answers",
        "hostile/test_open_server.py::test_what_a_page_may_ask_of_the_same_machine",
        "hostile/test_open_server.py::test_a_server_that_must_not_be_open",
    ],
    "A slow or silent server blocks no other work.": [
        "net/web/test_connections.py::test_silence_ends_and_reads_can_be_ended",
    ],
    "A model file cannot stop the server.": [
        "hostile/test_model_files.py::test_a_header_ends_somewhere",
        "hostile/test_requests.py::test_a_template_is_refused_before_it_is_read",
    ],
    "Engines have limits": [
        "supervise/test_limits.py::test_a_tree_beyond_its_limit_is_frozen_and_reported",
        "supervise/test_limits.py::test_what_the_kernel_ends_first",
        "supervise/test_limits.py::test_a_guard_has_no_secrets_of_the_server",
        "supervise/test_limits.py::test_other_programs_of_the_user_cannot_read_one_that_is_closed",
    ],
    "Requests cannot carry code.": [
        "routes/test_code_fields.py::test_each_field",
        "routes/test_code_fields.py::test_with_the_flag_an_administrator_may",
    ],
    "Requests cannot name files.": [
        "hostile/test_paths.py::test_from_afar_nothing_tells_a_file_from_none",
        "hostile/test_paths.py::test_no_route_tells_a_file_from_none",
        "routes/test_access.py::test_a_path_names_a_model_for_an_admin_only",
    ],
    "Untrusted web pages have no access.": [
        "routes/test_guards.py::test_hosts_of_a_server_for_this_machine",
        "routes/test_guards.py::test_pages_on_a_server_for_all",
        "hostile/test_open_server.py::test_what_an_open_server_answers",
    ],
    "A pulled file is the announced file": [
        "hostile/test_answers.py::test_a_manifest",
        "hostile/test_answers.py::test_the_hubs_token_goes_to_no_other_host",
        "hostile/test_answers.py::test_a_registrys_token_goes_to_no_other_host",
    ],
    "Named keys are stored as SHA-256 digests": [
        "accounts/keys/test_keys.py::test_a_file_of_keys_is_private_and_has_no_secret",
        "routes/test_keys.py::test_every_handler_needs_a_scope_that_was_chosen_for_it",
        "hostile/test_open_server.py::test_a_route_without_a_kind_is_for_keys",
    ],
    "vllama trusts a proxy's user header only with keys that have `--trusts-user yes`.": [
        "accounts/keys/test_act_for.py::test_the_user_of_a_proxys_key",
        "routes/test_users.py::test_a_user_is_believed_from_the_proxys_key_only",
        "deploy/test_oidc.py::test_who_is_let_in_and_counted",
    ],
    "Only administrators see the addresses of upstreams.": [
        "routes/test_addresses.py::test_only_administrators_see_addresses",
        "routes/test_addresses.py::test_without_keys_clients_of_this_machine_see_them",
    ],
    "Only harmless settings can change over HTTP": [
        "routes/test_settings_over_http.py::test_paths_commands_addresses_and_keys_cannot_be_changed",
        "routes/test_settings_over_http.py::test_an_open_server_without_keys_changes_nothing",
        "routes/test_keys_over_http.py::test_no_first_key_is_made_over_http",
    ],
    "No error contains a key.": ["routes/test_captures.py::test_secrets_are_not_kept"],
    "Engines serve only vllama.": [
        "routes/test_engine_sockets.py::test_all_that_is_asked_of_an_engine_goes_through_its_socket",
    ],
    "Only their owner can read vllama's files": [
        "hostile/test_modes.py::test_all_that_a_server_writes",
    ],
    "A model cannot control the terminal": [
        "cli/test_output.py::test_a_model_cannot_steer_the_terminal",
        "cli/test_output.py::test_what_a_program_reads_is_the_models_text",
    ],
    "Commands find a running server by a file": [
        "test_servers.py::test_servers_are_found_as_long_as_they_run",
        "server/test_changes.py::test_a_server_of_another_folder_has_no_say",
        "server/test_changes.py::test_a_server_by_tls",
        "server/test_commands.py::test_others_get_nothing",
        "server/test_commands.py::test_a_command_that_may_see_something_else_gets_nothing",
    ],
    "Images install locked packages": [
        "deploy/test_containers.py::test_what_an_image_installs_is_in_the_lock",
        "deploy/test_lock.py::test_all_files_have_hashes_and_come_from_the_public_index",
        "engines/test_release.py::test_an_archive_that_has_changed_since_it_was_tested",
        "engines/test_release.py::test_the_pin_is_renewed",
    ],
    "Root's commands act as the owner of the data folder": [
        "cli/test_owner.py::test_a_planted_link_gives_nothing_of_root_s_away",
    ],
}


def test_each_promise_has_its_tests() -> None:
    promised = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
    titles = re.findall(r"^- \*\*(.*?)\*\*", promised, re.MULTILINE | re.DOTALL)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", " ".join(title.split())) for title in titles]
    # a title may lead into its sentence: "Requests have [limits](…)**: on bodies, …"
    assert plain == list(PROMISES)


def test_the_tests_of_promises_are_there() -> None:
    for names in PROMISES.values():
        for file, _, name in (each.partition("::") for each in names):
            assert re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text()), (file, name)
