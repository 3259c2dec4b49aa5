/** The MCP servers that the chat of this browser may use. */

import { connectAll, listServers, storeServers } from "../chat/mcp.js";
import { plural } from "../format.js";
import { section, table } from "../parts/table.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

class McpServers extends View {
  /** @type {McpState[] | null} */ states = null;

  async enter() {
    this.listen("tools", () => this.enter());
    this.change({ states: await connectAll() });
  }

  template() {
    const servers = listServers();
    /** @param {McpServer} server */
    const remove = (server) => storeServers(servers.filter(({ url }) => url !== server.url));
    /** @type {Column<McpServer>[]} */
    const columns = [
      ["Name", ({ name }) => name],
      ["URL", ({ url }) => html`<code>${url}</code>`],
      ["Tools", (server) => this.status(server)],
      ["Actions", (server) => html`<button aria-label="Remove ${server.name}" @click=${() => remove(server)}>Remove</button>`, "actions"],
    ];
    return section("MCP servers", html`
      <p class="muted">Their tools are offered to models in the chat, and you are asked before each call. The list and its tokens stay in this browser.</p>
      ${servers.length ? table("cards", columns, servers, { key: ({ url }) => url }) : nothing}
      <form class="key-form" aria-label="A new MCP server" @submit=${this.add}>
        <div class="fields">
          <label><span>Name</span><input name="name" required maxlength="60" autocomplete="off" /></label>
          <label><span>URL</span><input name="url" type="url" required pattern="https?:.+" autocomplete="off" /></label>
          <label><span>Token, if it needs one</span><input name="token" type="password" autocomplete="off" /></label>
          <button>Add the server</button>
        </div>
      </form>
    `);
  }

  /** @param {McpServer} server */
  status({ url }) {
    const state = this.states?.find((one) => one.server.url === url);
    if (!state) return "Connecting …";
    return state.problem ? html`<span class="error" role="alert">${state.problem}</span>` : plural(state.tools.length, "tool");
  }

  /** @param {FormEvent} event */
  add(event) {
    event.preventDefault();
    const data = new FormData(event.target);
    const [name, url, token] = ["name", "url", "token"].map((field) => String(data.get(field)).trim());
    event.target.reset();
    storeServers([...listServers().filter((one) => one.url !== url), { name, url, token }]);
  }
}

customElements.define("mcp-servers", McpServers);
