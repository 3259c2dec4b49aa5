/** The frame of the page: navigation, connection, theme, and the element of the current page. */

import "./models/models-page.js"; // the page that most people open first comes with the frame
import { follow, reconnect } from "./live/stream.js";
import { refreshLibrary } from "./live/library.js";
import { state } from "./live/state.js";
import { askForKey } from "./parts/dialogs.js";
import { icon } from "./parts/icon.js";
import { keep } from "./parts/keep.js";
import { dropErrors, noticeList, showError } from "./parts/notices.js";
import { readRoute } from "./route.js";
import { readShortcut, showShortcuts } from "./shortcuts.js";
import { reach, setKeyPrompt, storeKey } from "./server.js";
import { html, nothing } from "./vendor/lit-html/lit-html.js";
import { View } from "./view.js";

/** The pages: index.html has their links, so that these are there before this file is. */
const PAGES = [.../** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll('app-shell nav a[href^="#/"]'))].map((link) => {
  const name = link.hash.slice(2);
  return { name, title: link.textContent, picture: link.querySelector("svg"), load: () => reach(import(`./${name}/${name}-page.js`)) };
});
const API = document.querySelector('app-shell nav a[href="docs.html"]');
const THEMES = ["system", "light", "dark"];

class AppShell extends View {
  static topics = ["connection", "requests", "notices"];

  /** @type {typeof PAGES[number] | null} */ current = null;
  /** @type {HTMLElement | null} */ page = null;

  enter() {
    this.brand = this.querySelector(".brand");
    this.replaceChildren();
    this.page = document.createElement("div");
    addEventListener("hashchange", () => this.open(true), { signal: this.leaving.signal });
    addEventListener("keydown", (event) => this.press(event), { signal: this.leaving.signal });
    this.every(1000, () => state.connection.status === "lost" && this.update());
    this.open(false);
    loadOthers(/** @type {typeof PAGES[number]} */ (this.current));
    setKeyPrompt(askForKey);
    refreshLibrary().catch(showError); // before all others: first.js has sent this request
    follow();
  }

  /** Show the page that the address names; `moved` if the user went there from another. @param {boolean} moved */
  open(moved) {
    const { page: name } = readRoute();
    const page = PAGES.find((one) => one.name === name) ?? PAGES[0];
    document.title = `${page.title} · vllama`;
    if (page !== this.current) {
      dropErrors();
      this.current = page;
      this.page = document.createElement(`${page.name}-page`);
      page.load().catch(showError);
    }
    this.update();
    requestAnimationFrame(() => {
      // a narrow screen shows some of the links only
      this.querySelector('nav [aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (moved) this.querySelector("main")?.focus();
    });
  }

  template() {
    return html`
      <header class="frame">
        ${this.brand}
        <nav aria-label="Pages" @keydown=${this.moveFocus}>
          ${PAGES.map((page) => this.link(page))}
          ${API}
        </nav>
        ${noticeList()}
        ${this.themeButton()}
        ${this.indicator()}
      </header>
      <div role="status" class="banner-area">${this.banner()}</div>
      <main id="main" tabindex="-1">${this.page}</main>
    `;
  }

  /** @param {typeof PAGES[number]} page */
  link(page) {
    const running = page.name === "activity" ? state.requests.size : 0;
    return html`<a href="#/${page.name}" aria-current=${page === this.current ? "page" : "false"}
      >${page.picture}${page.title}${running
        ? html` <span class="count" title="running and waiting requests">${running}</span>`
        : nothing}</a
    >`;
  }

  themeButton() {
    const theme = document.documentElement.dataset.theme ?? "system";
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    const label = `Theme: ${theme}. Change to ${next}`;
    return html`<button class="quiet" aria-label=${label} title=${label} @click=${() => this.setTheme(next)}>
      ${icon(theme)}
    </button>`;
  }

  indicator() {
    const { status } = state.connection;
    const words = { live: "Live", connecting: "Connecting", lost: "Not connected", forbidden: "Chat only", locked: "No key" }[status];
    return html`<span class="connection ${status}"><i aria-hidden="true"></i>${words}</span>`;
  }

  banner() {
    const { status, reason = "", retryAt = 0 } = state.connection;
    if (status === "locked" || status === "forbidden") {
      const [text, action] =
        status === "locked"
          ? ["This server requires a key.", "Enter a key"]
          : [html`This key can chat. Only keys with the scope <code>read</code> can see server activity.`, "Use another key"];
      return html`<div class="banner calm"><span>${text}</span> <button @click=${useAnotherKey}>${action}</button></div>`;
    }
    if (status !== "lost") return nothing;
    const seconds = Math.max(0, Math.round((retryAt - Date.now()) / 1000));
    return html`<div class="banner">
      <strong>Connection lost:</strong> ${reason.replace(/[^.?!]$/, "$&.")} What you see may be out of date.
      <span aria-hidden="true">Next attempt ${seconds ? `in ${seconds} s` : "now"}.</span>
      <button @click=${reconnect}>Try now</button>
    </div>`;
  }

  /** @param {KeyboardEvent} event */
  async press(event) {
    const shortcut = readShortcut(event);
    if (!shortcut) return;
    event.preventDefault();
    if (shortcut === "help") return showShortcuts();
    const chat = /** @type {typeof PAGES[number]} */ (PAGES.find(({ name }) => name === "chat"));
    await chat.load();
    if (this.current !== chat) {
      location.hash = "#/chat";
      await new Promise((resolve) => addEventListener("hashchange", resolve, { once: true }));
    }
    /** @type {any} */ (this.page)[shortcut]();
  }

  /** Move between the links of the navigation with the arrow keys. @param {FieldEvent} event */
  moveFocus(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const links = [...event.currentTarget.querySelectorAll("a")];
    const next = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement)) + step;
    links[(next + links.length) % links.length].focus();
    event.preventDefault();
  }

  /** @param {string} theme */
  setTheme(theme) {
    const chosen = theme === "system" ? "" : theme;
    if (chosen) document.documentElement.dataset.theme = chosen;
    else delete document.documentElement.dataset.theme;
    keep(localStorage, "theme", chosen);
    dispatchEvent(new Event("themechange"));
    this.update();
  }
}

/** Load the other pages after the first one, so that a click waits neither for them nor for the server. @param {typeof PAGES[number]} first */
async function loadOthers(first) {
  try {
    await first.load();
    for (const page of PAGES) await page.load();
  } catch {
    // said when the page is opened
  }
}

/** Forget the key, and begin anew: the server asks for one. */
function useAnotherKey() {
  storeKey("");
  location.reload();
}

customElements.define("app-shell", AppShell);
