import { defineConfig } from "vite";

// The service serves the files under /assets; `pack.ts` compresses and weighs them.
export default defineConfig({
  base: "/",
  build: {
    outDir: "../src/roamcast/page",
    emptyOutDir: true,
    target: "es2023",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // the page's policy allows no data: scripts or styles
    chunkSizeWarningLimit: 2000,
  },
  worker: { format: "es" },
});
