// What the script of the kit, which each page has, gives the scripts of the live page.
declare function theme(colours: "light" | "dark"): void;
